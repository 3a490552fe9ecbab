#!/usr/bin/env bash
# Checks for the programs that the test cluster needs beside those of
# setup-system.sh. Installs missing ones on Debian and Ubuntu as root;
# elsewhere it prints one line with their names. Leaves no service running or
# enabled.
set -euo pipefail

has() { command -v "$1" >/dev/null 2>&1; }

packages=() services=()
has etcd || { packages+=(etcd-server) && services+=(etcd); }
has containerd || { packages+=(containerd) && services+=(containerd); }
has runc || packages+=(runc)
[[ -x /usr/lib/cni/bridge ]] || packages+=(containernetworking-plugins)
has iptables || packages+=(iptables)
has ipset || packages+=(ipset) # for network policies
has ip || packages+=(iproute2)
has busybox || packages+=(busybox-static) # an image with a shell and nothing else
has alertmanager || has prometheus-alertmanager || { packages+=(prometheus-alertmanager) && services+=(prometheus-alertmanager); }
has debootstrap || packages+=(debootstrap) # an image with Python
((${#packages[@]})) || exit 0

if [[ $(uname -s) != Linux ]]; then
  echo "setup: the test cluster needs a Linux machine; elsewhere set KUBECONFIG to another one" >&2
  exit 1
fi
if ((EUID != 0)) || ! has apt-get; then
  echo "setup: missing programs. Run: sudo apt-get install -y ${packages[*]}" >&2
  exit 1
fi

# Packages start their services unless policy-rc.d forbids it. The cluster runs its
# own etcd and containerd.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
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
  for service in "${services[@]}"; do
    systemctl disable --now --quiet "$service" || true
  done
fi
