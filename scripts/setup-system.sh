#!/usr/bin/env bash
# Checks for the programs that building, running and testing need. Installs missing
# ones on Debian and Ubuntu as root; elsewhere it prints one line with their names.
# With the argument "run", another user than root needs only what runs the server with
# sandboxes in Docker, and its clients.
set -euo pipefail

has() { command -v "$1" >/dev/null 2>&1; }

# Go, Python and Node are not installed: the distribution's versions may be too old.
fail=0
need() { # need NAME MINIMUM FOUND
  if [[ -z $3 ]]; then
    echo "setup: $1 $2 or newer is needed and was not found" >&2
    fail=1
  elif [[ $(printf '%s\n%s\n' "$2" "$3" | sort -V | head -n1) != "$2" ]]; then
    echo "setup: $1 $2 or newer is needed; this is $3" >&2
    fail=1
  fi
}
need Go 1.26 "$(go env GOVERSION 2>/dev/null | sed 's/^go//' || true)"
need Python 3.11 "$(python3 -c 'import platform; print(platform.python_version())' 2>/dev/null || true)"
need Node 20 "$(node --version 2>/dev/null | sed 's/^v//' || true)"
has npm || { echo "setup: npm is needed and was not found" >&2; fail=1; }
((fail == 0)) || exit 1

packages=()
has git || packages+=(git)
has runc || packages+=(runc)
has mkfs.ext4 || packages+=(e2fsprogs)   # disk limits
has busybox || packages+=(busybox-static) # a test image with nothing else
has nginx || packages+=(nginx-light) # a test of gateways
has gcc || packages+=(gcc libc6-dev) # the race detector
has shellcheck || packages+=(shellcheck)
has dockerd || packages+=(docker.io) # the tests of the docker provider start it
has debootstrap || packages+=(debootstrap) # the base of deploy/userland in "make full"
has prometheus || packages+=(prometheus) # the tests of alerts and dashboard
has curl || packages+=(curl)
has scp || packages+=(openssh-client) # the tests of the SSH server
has rsync || packages+=(rsync)
# A test of previews. Other distributions do not have the package.
! grep -qsx ID=debian /etc/os-release || has chromium-headless-shell || packages+=(chromium-headless-shell)
python3 -c 'import venv, ensurepip' 2>/dev/null || packages+=(python3-venv)
if [[ ${1:-} == run ]] && ((EUID != 0)); then
  packages=()
  python3 -c 'import venv, ensurepip' 2>/dev/null || packages+=(python3-venv)
fi
((${#packages[@]})) || exit 0

if [[ $(uname -s) != Linux ]]; then
  echo "setup: not on Linux; the local provider and its tests need a Linux machine with runc" >&2
  exit 0
fi
if ((EUID == 0)) && has apt-get; then
  # nginx and prometheus start services unless policy-rc.d forbids it; the tests run
  # their own.
  policy=/usr/sbin/policy-rc.d
  if [[ ${packages[*]} =~ nginx|prometheus && ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  echo "setup: installing ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
  # Nor after the next boot.
  if [[ -d /run/systemd/system ]]; then
    for service in nginx prometheus; do
      [[ ${packages[*]} != *$service* ]] || systemctl disable --now --quiet "$service" || true
    done
  fi
else
  echo "setup: missing programs. Run: sudo apt-get install -y ${packages[*]}" >&2
  exit 1
fi
