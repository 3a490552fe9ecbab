#!/usr/bin/env bash
# Runs the tests of the docker provider on a rootless Docker daemon, which an ordinary user
# starts by RootlessKit with slirp4netns, and a server as that user. Where programs are
# missing, it installs Debian's packages. The user, its ranges of ids and a /dev/net/tun
# that it may open are in a mount namespace of the daemon's only.
set -euo pipefail
cd "$(dirname "$0")/.."

((EUID == 0)) || { echo "test-rootless: run it as root" >&2; exit 1; }
rootless=/usr/share/docker.io/contrib/dockerd-rootless.sh
if [[ ! -f $rootless ]] || ! command -v rootlesskit slirp4netns newuidmap dockerd >/dev/null; then
  command -v apt-get >/dev/null || { echo "test-rootless: docker.io, rootlesskit, slirp4netns and uidmap are needed" >&2; exit 1; }
  echo "test-rootless: installing rootlesskit"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends --no-upgrade -o APT::Get::Upgrade-By-Source-Package=false \
    docker.io rootlesskit slirp4netns uidmap >/dev/null
fi
dir=$(mktemp -d /tmp/sandgate-rootless.XXXXXX) # a socket's path must be short
uid=71234
export DOCKER_HOST=unix://$dir/run/docker.sock SANDGATE_DOCKER_IMAGE=docker.io/sandgate/userland:test SANDGATE_DOCKER=full
mkdir "$dir"/{run,home,etc}
for file in passwd group subuid subgid; do
  cat "/etc/$file" >"$dir/etc/$file" 2>/dev/null || true
done
echo "rootless:x:$uid:$uid::$dir/home:/bin/sh" >>"$dir/etc/passwd"
echo "rootless:x:$uid:" >>"$dir/etc/group"
echo "rootless:1811939328:65536" | tee -a "$dir/etc/subuid" >>"$dir/etc/subgid"
mknod -m 666 "$dir/tun" c 10 200
cp bin/sandgate "$dir/"
chmod 711 "$dir"
chown $uid:$uid "$dir"/{run,home}
ordinary=(setpriv "--reuid=$uid" "--regid=$uid" --clear-groups env "HOME=$dir/home" "XDG_RUNTIME_DIR=$dir/run")

daemon='' server=''
# shellcheck disable=SC2317 # the trap calls it
finish() {
  [[ -z $server ]] || { kill "$server"; wait "$server" || true; }
  docker ps --all --quiet | xargs --no-run-if-empty docker rm --force --volumes >/dev/null || true
  [[ -z $daemon ]] || { kill "$daemon"; wait "$daemon" || true; }
  rm -rf "$dir"
}
trap finish EXIT

# Without cgroup v2, nothing but this bounds the processes of a sandbox, which inherits it.
# shellcheck disable=SC2016 # the inner shell expands it
unshare --mount --propagation private bash -c '
  for file in passwd group subuid subgid; do
    [[ -e /etc/$file ]] || touch "/etc/$file"
    mount --bind "$1/etc/$file" "/etc/$file"
  done
  mount --bind "$1/tun" /dev/net/tun
  ulimit -u 4096
  exec setpriv --reuid="$2" --regid="$2" --clear-groups env HOME="$1/home" XDG_RUNTIME_DIR="$1/run" \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin sh "$3" --data-root "$1/home/data"
' - "$dir" "$uid" "$rootless" >"$dir/log" 2>&1 &
daemon=$!
for _ in {1..300}; do
  ! curl -sf --unix-socket "$dir/run/docker.sock" http://docker/_ping >/dev/null || break
  kill -0 "$daemon" || { tail -n 20 "$dir/log" >&2; exit 1; }
  sleep 0.1
done
scripts/docker-test-image.sh | docker import - "$SANDGATE_DOCKER_IMAGE" >/dev/null

status=0
# It has no limits without cgroup v2, no socket of the server's, and a loopback of its own,
# where the test's registry is not.
scripts/test-go.sh rootless -tags docker \
  -skip '^(TestGVisor.*|TestPullWithCredentials)$|^TestConformance$/^(socket|runsc)$|^TestConformance$/^exec$/^C24_(memory_hog|fork_bomb|no_process_left)$' ./providers/docker || status=1

"${ordinary[@]}" "$dir/sandgate" serve --provider docker --docker-image "$SANDGATE_DOCKER_IMAGE" --state-dir "$dir/home/state" \
  --listen "unix://$dir/run/sandgate.sock" --log-level error >"$dir/served" 2>&1 &
server=$!
for _ in {1..100}; do
  [[ ! -S $dir/run/sandgate.sock ]] || break
  sleep 0.1
done
ours() { "${ordinary[@]}" "$dir/sandgate" --address "unix://$dir/run/sandgate.sock" "$@"; }
if ours create kept >/dev/null && ours exec kept -- sh -c 'echo kept >/workspace/file' && ours suspend kept >/dev/null &&
  ours resume kept >/dev/null && [[ $(ours exec kept -- cat /workspace/file) == kept ]] &&
  [[ $(ours info --output json kept) == *'"transport": "exec"'* ]] &&
  [[ $(ours exec kept -- bash -c 'ulimit -u') == 4096 ]] && [[ $(ours run --network full -- sh -c 'ls /sys/class/net') == *eth0* ]]; then
  echo "test-rootless: a server as an ordinary user: ok"
else
  echo "test-rootless: a server as an ordinary user: FAILED" >&2
  cat "$dir/served" >&2
  status=1
fi
exit "$status"
