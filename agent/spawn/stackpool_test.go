package spawn

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// await waits until a supervisor has reported something.
func await(t *testing.T, p *Process) {
	t.Helper()
	for {
		fds := []unix.PollFd{{Fd: int32(p.Reports), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 30_000)
		switch {
		case n > 0:
			return
		case errors.Is(err, unix.EINTR): // the end of some child
		default:
			t.Fatalf("no report (%v)", err)
		}
	}
}

// end waits until a supervisor reports how the leader ended.
func end(t *testing.T, p *Process) {
	t.Helper()
	for {
		await(t, p)
		if _, ok, err := p.ReadEnd(); err != nil {
			t.Fatal(err)
		} else if ok {
			return
		}
	}
}

func supervised(t *testing.T, script string) *Process {
	t.Helper()
	n := null(t)
	p, err := Start(Spec{Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Dir: "/", Files: [4]int{n, n, n, -1}, Cgroup: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Close(p.PidFD)
		_ = unix.Close(p.Reports)
	})
	return p
}

// A supervisor without descendants is reaped in the background, even if no other
// command starts.
func TestSupervisorIsReapedInTheBackground(t *testing.T) {
	p := supervised(t, "exit 3")
	end(t, p)
	if !p.Exiting() {
		t.Fatal("no descendant was left, but the supervisor is not exiting")
	}
	reaped := make(chan struct{})
	p.ReapLater(func() { close(reaped) })
	p.Free()
	select {
	case <-reaped:
	case <-time.After(10 * time.Second):
		t.Fatal("the supervisor was not reaped")
	}
	if _, err := unix.Wait4(p.Supervisor, nil, unix.WNOHANG|unix.WALL, nil); !errors.Is(err, unix.ECHILD) {
		t.Fatalf("the supervisor is still there: %v", err)
	}
}

// A supervisor stays until the last descendant has ended.
func TestSupervisorStaysForDescendants(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p := supervised(t, "read x <"+pipe+" & exit 0")
	end(t, p)
	if p.Exiting() {
		t.Fatal("a descendant is left, but the supervisor is exiting")
	}
	gate, err := os.OpenFile(pipe, os.O_WRONLY, 0) // waits for its reader
	if err != nil {
		t.Fatal(err)
	}
	_ = gate.Close()
	await(t, p)
	if _, _, err := p.ReadEnd(); !errors.Is(err, ErrSupervisorLost) {
		t.Fatalf("got %v", err)
	}
	Reap(p.Supervisor)
	p.Free()
}

// A reused stack holds no data of its last child.
func TestStacksAreCleared(t *testing.T) {
	for range 3 * maxFreeStacks {
		p := supervised(t, "exit 0")
		end(t, p)
		p.ReapLater(func() {})
	}
	for range maxFreeStacks + 1 {
		mem, err := takeStack()
		if err != nil {
			t.Fatal(err)
		}
		defer putStack(mem)
		if c := &(*childStack)(unsafe.Pointer(&mem[0])).child; c.leader != 0 || c.pid != 0 || c.msg != (report{}) || c.argv != nil {
			t.Fatalf("data of the last child: %+v", c)
		}
	}
	stackPool.mu.Lock()
	defer stackPool.mu.Unlock()
	if len(stackPool.free) > maxFreeStacks {
		t.Fatalf("%d stacks are kept", len(stackPool.free))
	}
}
