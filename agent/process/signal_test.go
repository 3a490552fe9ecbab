package process

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/spawn"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// A command whose pump has ended signals no process: its pidfd or pid may belong to
// another process by now.
func TestNoSignalToAnotherProcess(t *testing.T) {
	other := exec.Command("sleep", "3600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	own, err := unix.PidfdOpen(other.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &command{proc: &spawn.Process{Pid: other.Process.Pid, PidFD: own}, drained: make(chan struct{})}
	if !c.signal(unix.SIGCONT, sandboxv1.SignalScope_SIGNAL_SCOPE_LEADER) {
		t.Error("not sent while the command runs")
	}
	c.closePidFD()
	if err := unix.Dup3(1, own, unix.O_CLOEXEC); err == nil {
		defer func() { _ = unix.Close(own) }()
	}
	for _, scope := range []sandboxv1.SignalScope{sandboxv1.SignalScope_SIGNAL_SCOPE_LEADER, sandboxv1.SignalScope_SIGNAL_SCOPE_GROUP} {
		if c.signal(unix.SIGCONT, scope) {
			t.Errorf("%v: sent", scope)
		}
	}
}
