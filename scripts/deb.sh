#!/usr/bin/env bash
# Builds a Debian package of the program, its systemd unit and its documentation.
# usage: deb.sh VERSION ARCH SANDGATE OUT    such as deb.sh v0.1.0 amd64 bin/sandgate dist
# Equal inputs give equal bytes: times are those of the last commit.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?usage: deb.sh VERSION ARCH SANDGATE OUT} arch=${2:?} program=${3:?} out=${4:?}
# A version of a package begins with a digit; one before any release is below all others.
case $version in
  v[0-9]*) version=${version#v} ;;
  *) version=0~$version ;;
esac
version=${version//-/+}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
install -D -m 755 "$program" "$root/usr/bin/sandgate"
install -D -m 644 deploy/systemd/sandgate.service "$root/lib/systemd/system/sandgate.service"
install -D -m 644 deploy/systemd/config.yaml "$root/etc/sandgate/config.yaml"
install -D -m 644 -t "$root/usr/share/doc/sandgate" docs/*.md
install -D -m 644 LICENSE "$root/usr/share/doc/sandgate/copyright"
mkdir "$root/DEBIAN"
echo /etc/sandgate/config.yaml >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/control" <<CONTROL
Package: sandgate
Version: $version
Architecture: $arch
Maintainer: The Sandgate authors <maintainers@sandgate.invalid>
Section: admin
Priority: optional
Installed-Size: $(du -sk --apparent-size "$root" | cut -f1)
Recommends: runc, e2fsprogs, ca-certificates
Suggests: docker.io
Description: one authenticated gRPC endpoint in front of sandboxes for AI agents
 The server and the command line of Sandgate. Commands of AI agents run in
 sandboxes on this machine, in Docker containers or in Kubernetes pods; their
 output streams while they run, and survives broken connections.
CONTROL
cat >"$root/DEBIAN/postinst" <<'SCRIPT'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  # After an upgrade the new server takes over the sandboxes of the old one.
  systemctl try-restart sandgate.service
fi
SCRIPT
cat >"$root/DEBIAN/prerm" <<'SCRIPT'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  systemctl disable --now sandgate.service
fi
SCRIPT
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
mkdir -p "$out"
dpkg-deb --build --root-owner-group -Zgzip "$root" "$out/sandgate_${version}_$arch.deb" >/dev/null
