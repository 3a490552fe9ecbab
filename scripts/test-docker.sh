#!/usr/bin/env bash
# Runs the tests of the docker provider on a Docker daemon of its own, which it starts
# and stops: the provider's suite, builds, URLs of ports and files, the quickstart, the network
# mode PROXY, restarts, a server in a container, builds by the Python and TypeScript client,
# and the conformance suite over a server.
# SANDGATE_DOCKER=full runs all of the conformance suite, by both transports and with
# gVisor, tests builds by a buildkitd, and builds and tests the image of deploy/userland,
# which takes minutes and the network.
set -euo pipefail
cd "$(dirname "$0")/.."

for program in dockerd docker containerd runc; do
  command -v "$program" >/dev/null || { echo "test-docker: no $program; make setup installs it" >&2; exit 1; }
done
dir=$(mktemp -d /tmp/sandgate-dockerd.XXXXXX) # a socket's path must be short
export DOCKER_HOST=unix://$dir/docker.sock SANDGATE_DOCKER_IMAGE=docker.io/sandgate/userland:test
export SANDGATE_AGENT_BIN=$PWD/bin/sandgate-agent
runsc=$PWD/.tools/bin/runsc
daemon='' server='' buildkitd=''

start() { # start FLAG...
  local flags=("$@")
  [[ ! -x $runsc ]] || flags+=("--add-runtime=runsc=$runsc")
  # Containers' shims inherit its working directory and may write to it.
  (cd "$dir" && exec dockerd --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/pid" -H "$DOCKER_HOST" \
    --bridge=none --iptables=false --ip6tables=false "${flags[@]}") >>"$dir/log" 2>&1 &
  daemon=$!
  for _ in {1..300}; do
    if curl -sf --unix-socket "$dir/docker.sock" http://docker/_ping >/dev/null; then return; fi
    kill -0 "$daemon" || break
    sleep 0.1
  done
  echo "test-docker: the daemon does not serve:" >&2
  tail -n 20 "$dir/log" >&2
  exit 1
}

stop() {
  [[ -n $daemon ]] || return 0
  kill "$daemon"
  wait "$daemon" || true
  daemon=''
}

# shellcheck disable=SC2317 # the trap calls it
finish() {
  [[ -z $server ]] || { kill "$server"; wait "$server" || true; }
  if [[ -n $buildkitd ]]; then
    kill "$buildkitd"
    wait "$buildkitd" || true
    # It leaves its cgroups, which are empty.
    find /sys/fs/cgroup -depth -type d \( -name buildkit -o -path '*/buildkit/*' \) -exec rmdir {} + 2>/dev/null || true
  fi
  docker ps --all --quiet | xargs --no-run-if-empty docker rm --force --volumes >/dev/null || true
  stop
  # What the daemon and gVisor leave mounted.
  awk -v dir="$dir/" 'index($2, dir) == 1 {print $2}' /proc/mounts | sort -r | xargs --no-run-if-empty umount || true
  rm -rf "$dir"
}
trap finish EXIT

start --live-restore
scripts/docker-test-image.sh | curl -sf --unix-socket "$dir/docker.sock" -X POST -H 'Content-Type: application/x-tar' \
  --data-binary @- 'http://docker/images/create?fromSrc=-&repo=docker.io/sandgate/userland&tag=test' >/dev/null

status=0
scripts/test-go.sh docker -tags docker ./providers/docker || status=1
scripts/test-go.sh docker -tags docker -run '^(TestNetworkConformanceOnDocker|TestLiteralsOnDocker)$' ./test/network || status=1
scripts/test-go.sh docker -tags docker ./providers/docker/build || status=1
scripts/test-go.sh docker -tags docker -run '^(TestSandboxesFromABuild|TestPreviewOnDocker)$' ./test/e2e || status=1

# Its base is Debian's packages, with the authorities that this machine trusts. Like the
# official images, dpkg does not sync each file.
userland() {
  local base=$dir/debian
  debootstrap --variant=minbase trixie "$base" >"$dir/userland" 2>&1 || return
  echo force-unsafe-io >"$base/etc/dpkg/dpkg.cfg.d/unsafe-io"
  mkdir -p "$base/usr/local/share/ca-certificates"
  find /usr/local/share/ca-certificates -name '*.crt' -exec cp -t "$base/usr/local/share/ca-certificates" {} + || return
  tar -C "$base" --numeric-owner --exclude='./dev/*' -cf - . | docker import - localhost/debian:test >/dev/null || return
  rm -rf "$base"
  bin/sandgate build --network host --build-arg BASE=localhost/debian:test --tag localhost/userland:test deploy/userland \
    >>"$dir/userland" 2>&1
}
# Builds by a buildkitd. It is built from source, which takes minutes.
by_buildkit() {
  make .tools/bin/.buildkit.stamp || return
  .tools/bin/buildkitd --root "$dir/buildkit" --addr "unix://$dir/buildkit.sock" --oci-worker=true --containerd-worker=false \
    --oci-worker-net=host >"$dir/buildkitd" 2>&1 &
  buildkitd=$!
  for _ in {1..100}; do
    [[ ! -S $dir/buildkit.sock ]] || break
    sleep 0.1
  done
  BUILDKIT_HOST=unix://$dir/buildkit.sock scripts/test-go.sh docker -tags docker,buildkit -run BuildKit ./providers/docker/build ./test/e2e
}
if [[ ${SANDGATE_DOCKER:-} == full ]]; then
  if ! by_buildkit; then
    echo "test-docker: builds by a buildkitd:" >&2
    tail -n 20 "$dir/buildkitd" >&2 || true
    status=1
  fi
  if userland; then
    SANDGATE_USERLAND_IMAGE=localhost/userland:test scripts/test-go.sh docker -tags docker -run '^TestInstallersInTheUserlandImage$' ./test/network || status=1
  else
    echo "test-docker: the image of deploy/userland cannot be built:" >&2
    tail -n 20 "$dir/userland" >&2
    status=1
  fi
fi

# The quickstart with Docker: as root, as an ordinary user who may not use the daemon, and
# as one who may, being in the group of its socket. In a mount namespace, that user sees
# this checkout and its Python, which may be where only root can read, and changes neither.
quickstart() { SERVE_FLAGS="--docker-image $SANDGATE_DOCKER_IMAGE" "$@"; }
PROVIDER=docker quickstart scripts/quickstart.sh >"$dir/quickstart" || { cat "$dir/quickstart"; status=1; }
chmod 711 "$dir"
user=$dir/user group=71234
mkdir -p "$user"/{checkout,python,bin,home}
packages=$(clients/python/.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
base=$(clients/python/.venv/bin/python -c 'import sys; print(sys.base_prefix)')
cat >"$user/bin/python" <<END
#!/bin/sh
export LD_LIBRARY_PATH=$user/python/lib PYTHONPATH=$user/checkout/clients/python/src:$user/checkout${packages#"$PWD"} PYTHONDONTWRITEBYTECODE=1
exec $user/python/bin/python3 "\$@"
END
chmod 755 "$user/bin/python"
chown nobody:nogroup "$user/home"
# npm runs no script before "start": root has installed and built what it would.
ordinary() { # ordinary FLAG...: flags of setpriv
  # shellcheck disable=SC2016 # the inner shell expands it
  quickstart env HOME="$user/home" TMPDIR="$user/home" npm_config_ignore_scripts=true npm_config_update_notifier=false \
    unshare --mount --propagation private bash -euc '
      user=$1 base=$2; shift 2
      mount -o bind,ro "$PWD" "$user/checkout"
      mount -o bind,ro "$base" "$user/python"
      mount --bind "$user/bin" "$user/checkout/clients/python/.venv/bin"
      cd "$user/checkout"
      exec setpriv --reuid=nobody --regid=nogroup --inh-caps=-all --bounding-set=-all --no-new-privs "$@" scripts/quickstart.sh
    ' - "$user" "$base" "$@" >"$dir/quickstart" 2>&1
}
if ordinary --clear-groups || ! grep -q 'may not use the Docker daemon' "$dir/quickstart"; then
  echo "test-docker: the quickstart without access to the daemon:" >&2
  cat "$dir/quickstart" >&2
  status=1
fi
chgrp "$group" "$dir/docker.sock"
if ordinary --groups "$group" && grep -q 'Both agents did their task' "$dir/quickstart"; then
  echo "test-docker: the quickstart of an ordinary user: ok"
else
  echo "test-docker: the quickstart of an ordinary user:" >&2
  cat "$dir/quickstart" >&2
  status=1
fi

# The daemon restarts below a running sandbox: with live restore it runs on, without
# it has ended.
adopted() {
  SANDGATE_DOCKER_STEP=$1 SANDGATE_DOCKER_STEP_DIR=$dir/adopted \
    scripts/test-go.sh docker -count=1 -tags docker -run '^TestSandboxesAreAdoptedOverTheDaemonsEnd$' ./providers/docker || status=1
}
adopted create
stop
start --live-restore
adopted running
stop
start
adopted ended

# The image of the server, as docs/install.md runs it. This daemon has no bridge, so the
# server listens in the directory of the daemon's socket.
arch=$(go env GOARCH)
go -C deploy/image run . --out "$dir/image" --tag sandgate:test "$arch=$PWD/bin/sandgate,$PWD/bin/sandgate-agent"
docker load --quiet --input "$dir/image/$arch.tar" >/dev/null
docker run --detach --name sandgate-server --user 0:0 --network none --read-only --tmpfs /tmp --cap-drop ALL --cap-add DAC_OVERRIDE \
  --security-opt no-new-privileges --volume "$dir:/var/run" --volume sandgate:/var/lib/sandgate sandgate:test \
  serve --provider docker --docker-image "$SANDGATE_DOCKER_IMAGE" --listen unix:///var/run/contained.sock >/dev/null
for _ in {1..100}; do
  [[ ! -S $dir/contained.sock ]] || break
  sleep 0.1
done
contained() { bin/sandgate --address "unix://$dir/contained.sock" "$@"; }
if id=$(contained create) && [[ $(contained exec "$id" -- echo contained) == contained ]] &&
  [[ $(contained info --output json "$id") == *'"transport": "exec"'* ]]; then
  echo "test-docker: a server in a container: ok"
else
  echo "test-docker: a server in a container: FAILED" >&2
  docker logs sandgate-server >&2
  status=1
fi
contained rm "$id" >/dev/null || true
docker rm --force --volumes sandgate-server >/dev/null

bin/sandgate serve --provider docker --docker-image "$SANDGATE_DOCKER_IMAGE" --state-dir "$dir/state" \
  --listen "unix://$dir/sandgate.sock" --log-level error &
server=$!
# The Go client's builds are in test/e2e.
for _ in {1..100}; do
  [[ ! -S $dir/sandgate.sock ]] || break
  sleep 0.1
done
export SANDGATE_ADDRESS=unix://$dir/sandgate.sock
reports=$PWD/.reports
mkdir -p "$reports"
rm -f "$reports"/docker-{python.xml,typescript.json}
(cd clients/python && PATH=$OLDPWD/bin:$PATH .venv/bin/python -m pytest -q -p no:cacheprovider \
  --junitxml="$reports/docker-python.xml" tests/integration/test_docker.py) || true
scripts/testsum.py junit docker-python "$reports/docker-python.xml" || status=1
(cd clients/ts && PATH=$OLDPWD/bin:$PATH npx --no-install vitest run --project docker \
  --reporter=default --reporter=json --outputFile.json="$reports/docker-typescript.json") || true
scripts/testsum.py vitest docker-typescript "$reports/docker-typescript.json" || status=1
unset SANDGATE_ADDRESS

# The suite over a server: a quarter of it by the transport of this server, or all of it,
# also by exec and with gVisor.
suite() { # suite ADDRESS FLAG...
  bin/sandgate conformance --address "$@" || status=1
}
if [[ ${SANDGATE_DOCKER:-} != full ]]; then
  suite "unix://$dir/sandgate.sock" --fraction 0.25 --seed "${SANDGATE_CONFORMANCE_SEED:-1}"
  exit "$status"
fi
suite "unix://$dir/sandgate.sock" --long
echo 'templates: [{name: default, provider_options: {runtime: runsc}, max_resources: {max_processes: 4096, memory_bytes: 4294967296}}]' >"$dir/runsc.yaml"
for flags in '--docker-transport exec' "--config $dir/runsc.yaml"; do
  kill "$server"
  wait "$server" || true
  rm -f "$dir/sandgate.sock"
  # shellcheck disable=SC2086 # they are words
  bin/sandgate serve --provider docker --docker-image "$SANDGATE_DOCKER_IMAGE" --state-dir "$dir/state" \
    --listen "unix://$dir/sandgate.sock" --log-level error $flags &
  server=$!
  for _ in {1..100}; do
    [[ ! -S $dir/sandgate.sock ]] || break
    sleep 0.1
  done
  suite "unix://$dir/sandgate.sock" --long
done
exit "$status"
