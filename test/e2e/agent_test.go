package e2e

import (
	"strings"
	"testing"
)

// A command runs as the user of its sandbox's agent, which is process 1 there. It can
// neither stop, kill nor inspect the agent.
func TestCommandsLeaveTheAgentAlone(t *testing.T) {
	need(t)
	id := shared.create(t)
	got := shared.run("", "exec", id, "-c", `
		for s in STOP KILL TSTP TTIN TTOU HUP QUIT ABRT SEGV BUS FPE ILL TRAP SYS USR1 USR2 PIPE ALRM VTALRM PROF XCPU XFSZ IO PWR; do
			kill -$s 1 2>/dev/null
		done
		for f in environ maps mem auxv; do
			head -c 1 /proc/1/$f >/dev/null 2>&1 && echo "$f can be read"
		done
		ls /proc/1/fd >/dev/null 2>&1 && echo "descriptors can be listed"
		(echo 1000 > /proc/1/oom_score_adj) 2>/dev/null && echo "it can be made the kernel's first victim"
		cat /proc/self/oom_score_adj`)
	if got.code != 0 || strings.TrimSpace(got.stdout) != "500" {
		t.Errorf("%+v", got)
	}
	if got := shared.must(t, "exec", id, "--", "echo", "on"); got != "on" {
		t.Errorf("after that: %q", got)
	}
}

// The agent may start processes in a cgroup, by clone3, and commands must not:
// a filter cannot see whether they request namespaces.
func TestCommandsHaveNoClone3(t *testing.T) {
	need(t)
	id := shared.create(t)
	got := shared.must(t, "exec", id, "--", "python3", "-c", `
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for call, flags in (435, 0), (272, 0x10000000), (56, 0x10000000):
    ctypes.set_errno(0)
    libc.syscall(call, flags, 0, 0, 0, 0)
    print(call, ctypes.get_errno())
`)
	// clone3: ENOSYS. A user namespace by unshare or clone: EPERM.
	if got != "435 38\n272 1\n56 1" {
		t.Errorf("system calls and errors:\n%s", got)
	}
}
