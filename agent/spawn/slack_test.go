package spawn

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A command does not inherit the timer slack of the agent's thread.
func TestTimerSlackIsReset(t *testing.T) {
	runtime.LockOSThread() // not unlocked: the thread ends with its slack
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1_000_000, 0, 0, 0); err != nil {
		t.Skip(err)
	}
	out := filepath.Join(t.TempDir(), "slack")
	n := null(t)
	p, err := Start(Spec{Path: "/bin/sh", Argv: []string{"sh", "-c", "cat /proc/self/timerslack_ns > " + out}, Dir: "/", Files: [4]int{n, n, n, -1}, Cgroup: -1})
	if err != nil {
		t.Fatal(err)
	}
	if e := wait(t, p); e.Status.ExitStatus() != 0 {
		t.Skip("no /proc/self/timerslack_ns")
	}
	got, err := os.ReadFile(out)
	if err != nil || strings.TrimSpace(string(got)) != "50000" {
		t.Errorf("the command has a timer slack of %q, %v", got, err)
	}
}
