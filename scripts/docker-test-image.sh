#!/usr/bin/env bash
# Prints a tar stream of a small userland, for "docker import": this machine's shell,
# basic programs and Python, with their libraries, and what the arguments name: packages of
# this machine, files and directories. No registry is needed.
set -euo pipefail

packages=(base-files dash bash coreutils grep sed findutils mawk procps util-linux hostname tar gzip git
  python3-minimal python3.11-minimal libpython3.11-minimal libpython3.11-stdlib python3.11)
paths=()
for name; do
  if [[ $name == /* ]]; then paths+=("$name"); else packages+=("$name"); fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd /
for package in "${packages[@]}"; do
  dpkg -L "$package" 2>/dev/null || true
done | grep -Ev '^/(usr/share|etc|var|home|root|run|tmp|boot|media|mnt|srv|opt)/|__pycache__' |
  while read -r path; do
    if [[ -L $path || -f $path ]]; then echo "$path"; fi
  done | sort -u >"$work/files"
if [[ ${#paths[@]} -gt 0 ]]; then find "${paths[@]}" '(' -type f -o -type l ')' >>"$work/files"; fi

# What they link to, with the interpreter of ELF files.
xargs -d '\n' -a "$work/files" -n 50 ldd 2>/dev/null | grep -Eo '/[^ ]*\.so[^ ]*' | sort -u >"$work/libraries" || true
while read -r library; do
  echo "$library"
  readlink -f "$library"
done <"$work/libraries" >>"$work/files"

# In a merged /usr the short paths are links, which come first.
mkdir -p "$work/root"/{usr/bin,usr/sbin,usr/lib,etc,tmp,proc,sys,dev,root,home,run,var/tmp}
for name in bin sbin lib lib64; do
  if [[ -L /$name ]]; then
    ln -s "$(readlink "/$name")" "$work/root/$name"
    mkdir -p "$work/root/$(readlink "/$name")"
  fi
done
chmod 1777 "$work/root/tmp" "$work/root/var/tmp"
printf 'root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000::/home/sandbox:/bin/sh\n' >"$work/root/etc/passwd"
printf 'root:x:0:\nsandbox:x:1000:\n' >"$work/root/etc/group"
for file in /etc/ld.so.cache /etc/ld.so.conf; do cp "$file" "$work/root/etc/"; done
sort -u "$work/files" | sed -E 's#^/(bin|sbin|lib|lib64)/#/usr/\1/#; s#^/##' | sort -u |
  while read -r path; do if [[ -e /$path || -L /$path ]]; then echo "$path"; fi; done >"$work/relative"
tar -C / --no-recursion -T "$work/relative" -cf - | tar -C "$work/root" -xf -
ln -sf python3.11 "$work/root/usr/bin/python"
tar -C "$work/root" --numeric-owner -cf - .
