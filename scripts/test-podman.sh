#!/usr/bin/env bash
# Runs the tests of the docker provider on the API of a Podman, with storage of its own,
# which it starts and stops. Where Podman is missing, it installs Debian's package.
set -euo pipefail
cd "$(dirname "$0")/.."

((EUID == 0)) || { echo "test-podman: run it as root" >&2; exit 1; }
if ! command -v podman >/dev/null; then
  if ! command -v apt-get >/dev/null; then
    echo "test-podman: podman is needed" >&2
    exit 1
  fi
  echo "test-podman: installing podman"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # Nothing that is installed is replaced, and its services do not stay enabled.
  apt-get install -y -qq --no-install-recommends --no-upgrade -o APT::Get::Upgrade-By-Source-Package=false podman >/dev/null
  if [[ -d /run/systemd/system ]]; then
    systemctl disable --now --quiet podman.socket podman.service podman-restart.service podman-auto-update.{service,timer} || true
  fi
fi
dir=$(mktemp -d /tmp/sandgate-podman.XXXXXX) # a socket's path must be short
export DOCKER_HOST=unix://$dir/podman.sock SANDGATE_DOCKER_IMAGE=docker.io/sandgate/userland:test
export CONTAINERS_CONF=$dir/containers.conf SANDGATE_DOCKER=full
# Podman raises the limits of containers by default, which needs CAP_SYS_RESOURCE. It
# lowers its own limit of processes, which no container may then exceed.
# Its own seccomp profile allows user namespaces, Docker's does not.
cat >"$CONTAINERS_CONF" <<END
[containers]
default_ulimits = ["nofile=$(ulimit -n):$(ulimit -n)", "nproc=16384:16384"]
seccomp_profile = "$(go list -m -f '{{.Dir}}' github.com/moby/profiles/seccomp)/default.json"
END
# Unlike Docker, it expects TLS of a registry on this machine, which a test has.
export CONTAINERS_REGISTRIES_CONF=$dir/registries.conf
printf '[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n' >"$CONTAINERS_REGISTRIES_CONF"
mkdir "$dir/networks"
engine() {
  podman --root "$dir/root" --runroot "$dir/run" --tmpdir "$dir/tmp" --network-config-dir "$dir/networks" \
    --cgroup-manager cgroupfs --events-backend file --runtime runc --storage-driver overlay "$@"
}

service=''
# shellcheck disable=SC2317 # the trap calls it
finish() {
  engine rm --all --force --time 0 >/dev/null 2>&1 || true
  [[ -z $service ]] || { kill "$service"; wait "$service" || true; }
  awk -v dir="$dir/" 'index($2, dir) == 1 {print $2}' /proc/mounts | sort -r | xargs --no-run-if-empty umount || true
  rm -rf "$dir"
}
trap finish EXIT

engine system service --time 0 "$DOCKER_HOST" >"$dir/log" 2>&1 &
service=$!
for _ in {1..100}; do
  ! curl -sf --unix-socket "$dir/podman.sock" http://docker/_ping >/dev/null || break
  kill -0 "$service" || { cat "$dir/log" >&2; exit 1; }
  sleep 0.1
done
scripts/docker-test-image.sh | engine import --quiet - "$SANDGATE_DOCKER_IMAGE" >/dev/null
# Its API ignores the runtime of a template.
scripts/test-go.sh podman -tags docker -skip '^(TestGVisor|TestGPUsAreRequested$)|^TestConformance$/^runsc$' ./providers/docker
