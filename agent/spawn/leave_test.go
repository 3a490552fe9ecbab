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

// await waits until there is something to read of a supervisor.
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

// end waits for the first report of an end.
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

// A supervisor below which nothing is left is reaped without being waited for,
// also when nothing else is started.
func TestLeave(t *testing.T) {
	p := supervised(t, "exit 3")
	end(t, p)
	if !p.Left() {
		t.Fatal("nothing was left, and the supervisor stays")
	}
	gone := make(chan struct{})
	p.Leave(func() { close(gone) })
	p.Free()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Fatal("the supervisor was not reaped")
	}
	if _, err := unix.Wait4(p.Supervisor, nil, unix.WNOHANG|unix.WALL, nil); !errors.Is(err, unix.ECHILD) {
		t.Fatalf("the supervisor is still there: %v", err)
	}
}

// One above a process that its command left behind stays until that has ended.
func TestStayWithWhatIsLeft(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p := supervised(t, "read x <"+pipe+" & exit 0")
	end(t, p)
	if p.Left() {
		t.Fatal("a process is left, and the supervisor goes")
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

// What one child was told must not be read by the next that gets its room.
func TestRoomsAreCleared(t *testing.T) {
	for range 3 * keptRooms {
		p := supervised(t, "exit 0")
		end(t, p)
		p.Leave(func() {})
	}
	for range keptRooms + 1 {
		mem, err := takeRoom()
		if err != nil {
			t.Fatal(err)
		}
		defer giveRoom(mem)
		if c := &(*room)(unsafe.Pointer(&mem[0])).child; c.leader != 0 || c.pid != 0 || c.msg != (report{}) || c.argv != nil {
			t.Fatalf("left of the last one: %+v", c)
		}
	}
	rooms.mu.Lock()
	defer rooms.mu.Unlock()
	if len(rooms.free) > keptRooms {
		t.Fatalf("%d rooms are kept", len(rooms.free))
	}
}
