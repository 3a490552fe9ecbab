#!/usr/bin/env bash
# Installs what a release holds as its users do, into a directory, and uses it: the Debian
# package, "go install", the wheel and the npm package. With root, a sandbox of the
# package's server survives a restart of that server.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d /tmp/sandgate-packages.XXXXXX)
server=''
# shellcheck disable=SC2317 # the trap calls it
finish() {
  [[ -z $server ]] || { kill "$server"; wait "$server" || true; }
  rm -rf "$dir"
}
trap finish EXIT

same() { # same WHAT WANT GOT
  [[ $2 == "$3" ]] || { echo "test-packages: $1: $3 instead of $2" >&2; exit 1; }
  echo "test-packages: $1: ok"
}

arch=$(go env GOARCH)
scripts/deb.sh v1.2.3-rc.1 "$arch" bin/sandgate "$dir/deb"
scripts/deb.sh v1.2.3-rc.1 "$arch" bin/sandgate "$dir/again"
deb=$dir/deb/sandgate_1.2.3+rc.1_$arch.deb
cmp "$deb" "$dir/again/${deb##*/}"
same 'the version of the package' 1.2.3+rc.1 "$(dpkg-deb --field "$deb" Version)"
dpkg-deb --extract "$deb" "$dir/root"
same 'the owner of its files' 'root/root' "$(dpkg-deb --contents "$deb" | awk '{print $2}' | sort -u)"
if [[ -d /run/systemd/system ]]; then
  systemd-analyze verify --man=no --root="$dir/root" sandgate.service
fi

export SANDGATE_ADDRESS=unix://$dir/socket
start() {
  "$dir/root/usr/bin/sandgate" serve --config "$dir/root/etc/sandgate/config.yaml" \
    --listen "$SANDGATE_ADDRESS" --state-dir "$dir/state" --local-cgroup "/sandgate-packages-$$" --log-level error &
  server=$!
  for _ in {1..300}; do
    if "$dir/root/usr/bin/sandgate" info >/dev/null 2>&1; then return; fi
    kill -0 "$server"
    sleep 0.1
  done
}
if ((EUID == 0)); then
  start
  id=$("$dir/root/usr/bin/sandgate" create)
  "$dir/root/usr/bin/sandgate" exec "$id" -- sh -c 'echo kept > kept'
  kill "$server"
  wait "$server"
  start
  same 'a file after a restart' kept "$("$dir/root/usr/bin/sandgate" exec "$id" -- cat kept)"
  "$dir/root/usr/bin/sandgate" rm "$id" >/dev/null
  kill "$server"
  wait "$server"
  server=''
fi

# From the files that Git has, so without the agents that "make build" has put there.
mkdir "$dir/source" "$dir/go"
git ls-files -z | tar --null --files-from=- --create --file=- | tar --extract --directory "$dir/source"
CGO_ENABLED=0 GOBIN=$dir/go GOFLAGS='-trimpath -buildvcs=false' go -C "$dir/source" install ./cmd/sandgate ./cmd/sandgate-agent
if ((EUID == 0)); then
  same 'a server by go install' 42 "$("$dir/go/sandgate" serve --listen "$SANDGATE_ADDRESS" --state-dir "$dir/state" \
    --local-cgroup "/sandgate-packages-$$" --log-level error & server=$!
    for _ in {1..300}; do [[ ! -S $dir/socket ]] || break; sleep 0.1; done
    "$dir/go/sandgate" run -- sh -c 'echo 42'
    kill "$server"; wait "$server" || true)"
fi

.tools/python/bin/python -m build --wheel --outdir "$dir/wheel" clients/python >/dev/null
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check -c tools/python/constraints.txt "$dir"/wheel/*.whl
same 'the wheel' 'py.typed True' "$(cd "$dir" && venv/bin/python -c 'import sandgate, sandgate.aio, importlib.resources as r
print("py.typed", r.files("sandgate").joinpath("py.typed").is_file())')"

(cd clients/ts && npm run --silent build && npm pack --silent --pack-destination "$dir" >/dev/null)
mkdir "$dir/npm"
(cd "$dir/npm" && npm init --yes >/dev/null && npm install --silent --no-audit --no-fund ../sandgate-*.tgz)
same 'the npm package' 'function function' "$(cd "$dir/npm" && node -e 'import("sandgate").then((esm) =>
  console.log(typeof esm.Client, typeof require("sandgate").Client))')"
