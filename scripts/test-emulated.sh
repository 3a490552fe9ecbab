#!/usr/bin/env bash
# Runs tests of the agent in an emulated machine that is unlike this one: arm64,
# with cgroups of version 2 only and a memory controller in them. The kernel and
# a static busybox come from Debian's archive for that architecture, by apt, into
# .tools/emulated; nothing else on this machine changes.
# usage: test-emulated.sh [REGEXP OF TESTS]
set -euo pipefail
cd "$(dirname "$0")/.."
tests=${1:-'^Test(Supervised|StartFailures|MemoryCgroupMakesOutOfMemoryCertain|OneExecIDIsOneCommand|WriteStdin|Execute|Merged|StartErrors|EndReasons|Terminal|CommandEndsWhenItsSupervisorIsKilled)$'}
home=$PWD/.tools/emulated
scripts/guest-kernel.sh "$home" arm64 qemu-system-aarch64 qemu-system-arm linux-image-arm64

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/root/{bin,dev,etc,proc,sys,tmp,usr/bin}
cp "$home/busybox" "$work/root/bin/busybox"
for package in agent agent/spawn; do
  GOARCH=arm64 CGO_ENABLED=0 go test -c -tags memorycgroup -buildvcs=false -o "$work/root/${package//\//-}.test" "./$package"
done
cat >"$work/root/init" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir /dev/pts
mount -t devpts pts /dev/pts
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
ip link set lo up
echo root:x:0:0::/tmp:/bin/sh >/etc/passwd
cd /tmp
for package in agent/spawn agent; do
  echo "package \$package"
  "/\$(echo \$package | tr / -).test" -test.v -test.timeout 15m -test.run '$tests'
done
poweroff -f
END
chmod +x "$work/root/init"
(cd "$work/root" && find . | cpio --create --format newc --quiet | gzip -1) >"$work/initrd"

# The console carries only the output of the tests, by the kernel's settings. Its
# lines end with CR LF.
timeout "${EMULATED_TIMEOUT:-20m}" qemu-system-aarch64 -M virt -cpu cortex-a57 -smp 2 -m 2048 -nographic -nic none -no-reboot \
  -kernel "$home/kernel" -initrd "$work/initrd" -append 'console=ttyAMA0 quiet loglevel=0 panic=-1' \
  </dev/null >"$work/console" || echo "test-emulated: the machine ended with $?" >&2
tr -d '\r' <"$work/console" | awk -v dir="$work" '
  /^package / {name = $2; gsub("/", "-", name); out = dir "/" name ".out"; next}
  out {print >out}'
for package in agent/spawn agent; do
  go tool test2json -p "github.com/sandgate/sandgate/$package (emulated)" <"$work/${package//\//-}.out"
done | scripts/testsum.py go emulated
