#!/usr/bin/env bash
# Gets what an emulated machine needs: the emulator, and from Debian's archive a kernel,
# modules of it and a static busybox for an architecture. They come by apt with a state
# of its own, so that this machine gets no packages of another architecture.
# usage: guest-kernel.sh DIRECTORY ARCHITECTURE EMULATOR ITS-PACKAGE KERNEL-PACKAGE [MODULE…]
set -euo pipefail
home=$1 arch=$2 emulator=$3 package=$4 kernel=$5
shift 5

if ! command -v "$emulator" >/dev/null || ! command -v cpio >/dev/null; then
  if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
    echo "guest-kernel: $emulator and cpio are needed: sudo apt-get install -y $package cpio" >&2
    exit 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "$package" cpio >/dev/null
fi

[[ ! -e $home/kernel ]] || exit 0
mkdir -p "$home"/apt/{lists/partial,archives/partial} "$home/root" "$home/modules"
apt=(-o "Dir::State::Lists=$home/apt/lists" -o "Dir::State::status=/dev/null" -o "Dir::Cache=$home/apt"
  -o "APT::Architecture=$arch" -o "APT::Architectures::=$arch" -o "APT::Sandbox::User=root")
apt-get "${apt[@]}" update -qq
kernel=$(apt-cache "${apt[@]}" depends "$kernel" | awk '/Depends: linux-image/ {print $2; exit}')
(cd "$home/apt" && apt-get "${apt[@]}" download -qq "$kernel" busybox-static)
for deb in "$home"/apt/*.deb; do dpkg -x "$deb" "$home/root"; done
cp "$home/root/bin/busybox" "$home/busybox"
for module; do find "$home/root/lib/modules" -name "$module.ko" -exec cp {} "$home/modules" \;; done
cp "$home"/root/boot/vmlinuz-* "$home/kernel.part"
rm -rf "$home/apt" "$home/root"
mv "$home/kernel.part" "$home/kernel"
