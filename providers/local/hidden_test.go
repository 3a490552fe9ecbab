//go:build linux

package local_test

import (
	"testing"

	"github.com/sandgate/sandgate/providers/providertest"
)

// TestSandboxLearnsNothingOfTheHostsDisks: a sandbox learns nothing of the machine's disks, among which
// are those of other sandboxes.
func TestSandboxLearnsNothingOfTheHostsDisks(t *testing.T) {
	p := opened(t, testConfig(t))
	createPlain(t, p, "one")
	for _, script := range []string{
		"cat /sys/block/*/loop/backing_file /sys/devices/virtual/block/*/stat",
		"cat /proc/diskstats /proc/partitions",
		"ls -A /sys/block /sys/class/block /sys/dev/block /sys/devices/virtual/block /sys/fs/ext4 /proc/fs | grep -v : ",
	} {
		if got := providertest.Shell(t, p, "one", script+" 2>/dev/null | tr -d '\\n'"); got != "" {
			t.Errorf("%s: %q", script, got)
		}
	}
}

// TestSandboxGetsASmallShareOfKernelLimits: a sandbox gets a small share of resources that the
// kernel limits for the whole machine.
func TestSandboxGetsASmallShareOfKernelLimits(t *testing.T) {
	p := opened(t, testConfig(t))
	createPlain(t, p, "one")
	for _, c := range []struct{ name, script, want string }{
		{"core dumps", "ulimit -c; grep core /proc/self/limits | tr -s ' '", "0\nMax core file size 1 1 bytes \n"},
		{"TCP buffers", "cat /proc/sys/net/ipv4/tcp_rmem /proc/sys/net/ipv4/tcp_wmem | tr '\\t' ' '", "4096 131072 262144\n4096 16384 262144\n"},
		{"terminals", `python3 -c '
import os
held = []
try:
    while len(held) < 300: held.append(os.open("/dev/ptmx", os.O_RDWR))
except OSError as e: print(len(held), e.errno)
'`, "256 28\n"},
		{"asynchronous I/O", `python3 -c '
import ctypes, os
libc, context = ctypes.CDLL(None, use_errno=True), ctypes.c_long()
number = {"x86_64": 206, "aarch64": 0}[os.uname().machine]
print(libc.syscall(number, 1, ctypes.byref(context)), ctypes.get_errno())
'`, "-1 38\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := providertest.Shell(t, p, "one", c.script); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
