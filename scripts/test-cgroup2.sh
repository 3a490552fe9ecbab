#!/usr/bin/env bash
# Runs a part of the local provider's tests in an emulated machine that has cgroups
# of version 2 only, as current distributions do: creation, commands, limits and
# deletion with runc. The machine has Debian's cloud kernel and busybox, and this
# machine's runc and mkfs.ext4. The kernel comes from Debian's archive, by apt, into
# .tools/cgroup2; nothing else of this machine is changed. /dev/kvm is not used: where
# this machine is itself a virtual one, a guest may hang in it.
# usage: test-cgroup2.sh [REGEXP OF TESTS]
set -euo pipefail
cd "$(dirname "$0")/.."
tests=${1:-'^Test(AllSandboxesTogetherHaveLimits|Conformance|DelegatedCgroupIsBounded)$/^socket$/^C(20_create_is_ready|21_delete_frees_the_name|24_(fork_bomb|memory_hog))$'}
# The machine lacks gVisor, Python, Go and other programs of the conformance suite.
skip='/runsc|/C24_python|/C24_program_(go|python|node|git|compiler|sqlite)'
home=$PWD/.tools/cgroup2
scripts/guest-kernel.sh "$home" amd64 qemu-system-x86_64 qemu-system-x86 linux-image-cloud-amd64 loop overlay

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,dev,etc,lib,new,proc,root,run,sbin,sys,tmp,usr/{bin,sbin},var/lib}
chmod 1777 "$root/tmp"
cp "$home/busybox" "$root/bin/busybox"
cp "$home"/modules/*.ko "$root/lib"
cp /etc/mke2fs.conf "$root/etc"
echo root:x:0:0::/root:/bin/sh >"$root/etc/passwd"
echo root:x:0: >"$root/etc/group"
for program in runc mkfs.ext4; do
  path=$(command -v "$program")
  cp -L "$path" "$root/usr/bin/$program"
  # The loader and libraries, at their own paths.
  for library in $(ldd "$path" | grep -o '/[^ ]*'); do cp -L --parents "$library" "$root"; done
done
CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$root/sandgate-agent" ./cmd/sandgate-agent
CGO_ENABLED=0 go test -trimpath -c -buildvcs=false -o "$root/local.test" ./providers/local
cat >"$root/init" <<END
#!/bin/busybox sh
# The root of an initial file system cannot be pivoted, which runc does.
/bin/busybox mount -t tmpfs -o size=80% root /new
/bin/busybox cp -a /bin /etc /lib /lib64 /root /sandgate-agent /sbin /start /usr /local.test /new/
exec /bin/busybox switch_root /new /start
END
cat >"$root/start" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin HOME=/root SANDGATE_TEST_AGENT=/sandgate-agent
mkdir -m 755 -p /dev /proc /run /sys /var/lib
mkdir -m 1777 /tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
insmod /lib/loop.ko
insmod /lib/overlay.ko
ip link set lo up
cd /tmp
printf '\n%s\n' 'tests begin'
/local.test -test.v -test.timeout 15m -test.run '$tests' -test.skip '$skip'
poweroff -f
END
chmod +x "$root/init" "$root/start"
(cd "$root" && find . | cpio --create --format newc --quiet | gzip -1) >"$work/initrd"

timeout "${CGROUP2_TIMEOUT:-20m}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 3072 -nographic -nic none -no-reboot \
  -kernel "$home/kernel" -initrd "$work/initrd" -append 'console=ttyS0 quiet loglevel=0 panic=-1' \
  </dev/null >"$work/console" || echo "test-cgroup2: the machine ended with $?" >&2
# The firmware's lines come before those of the tests.
tr -d '\r' <"$work/console" | sed -n '/^tests begin$/,$p' | sed 1d |
  go tool test2json -p "github.com/sandgate/sandgate/providers/local (cgroup v2)" | scripts/testsum.py go cgroup2
