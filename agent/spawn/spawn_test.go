package spawn

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func wait(t testing.TB, p *Process) End {
	t.Helper()
	defer func() {
		if p.PidFD >= 0 {
			_ = unix.Close(p.PidFD)
		}
		if p.Reports >= 0 {
			_ = unix.Close(p.Reports)
		}
	}()
	for {
		fds := []unix.PollFd{{Fd: int32(p.PidFD), Events: unix.POLLIN}}
		if p.Reports >= 0 {
			fds[0].Fd = int32(p.Reports)
		}
		if _, err := unix.Poll(fds, 10_000); err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
		var e End
		var ok bool
		var err error
		if p.Reports >= 0 {
			e, ok, err = p.ReadEnd()
		} else {
			e, ok, err = Wait(p.Pid)
		}
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			switch {
			case p.Exiting():
				p.ReapLater(func() {})
			case p.Supervisor != 0:
				Reap(p.Supervisor)
			}
			p.Free()
			return e
		}
	}
}

func null(t testing.TB) int {
	f, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return int(f.Fd())
}

func TestSupervised(t *testing.T) {
	n := null(t)
	for range 50 {
		p, err := Start(Spec{Path: "/bin/sh", Argv: []string{"sh", "-c", "exit 7"}, Dir: "/", Files: [4]int{n, n, n, -1}, Cgroup: -1})
		if err != nil {
			t.Fatal(err)
		}
		if e := wait(t, p); e.Status.ExitStatus() != 7 {
			t.Fatalf("status %v", e.Status)
		}
	}
}

// Once a command is said to be started its supervisor holds none of its pipes:
// an end that the command closes is closed.
func TestSupervisorHoldsNothing(t *testing.T) {
	n := null(t)
	for range 50 {
		p, err := Start(Spec{Path: "/bin/sleep", Argv: []string{"sleep", "100"}, Dir: "/", Files: [4]int{n, n, n, -1}, Cgroup: -1})
		if err != nil {
			t.Fatal(err)
		}
		held, err := os.ReadDir("/proc/" + strconv.Itoa(p.Supervisor) + "/fd")
		if err != nil || len(held) != 1 {
			t.Errorf("beside its reports it holds %v, %v", held, err)
		}
		if err := unix.Kill(p.Pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wait(t, p)
	}
}

func TestStartFailures(t *testing.T) {
	n := null(t)
	for name, c := range map[string]struct {
		spec Spec
		kind error
		want error
	}{
		"no program":   {Spec{Path: "/no/such", Dir: "/"}, ErrExec, syscall.ENOENT},
		"no directory": {Spec{Path: "/bin/true", Dir: "/no/such"}, ErrDir, syscall.ENOENT},
		"a directory":  {Spec{Path: "/tmp", Dir: "/"}, ErrExec, syscall.EACCES},
	} {
		t.Run(name, func(t *testing.T) {
			c.spec.Argv, c.spec.Files, c.spec.Cgroup = []string{"x"}, [4]int{n, n, n, -1}, -1
			_, err := Start(c.spec)
			if !errors.Is(err, c.kind) || !errors.Is(err, c.want) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func BenchmarkSupervised(b *testing.B) {
	n := null(b)
	for b.Loop() {
		p, err := Start(Spec{Path: "/bin/true", Argv: []string{"true"}, Dir: "/", Files: [4]int{n, n, n, -1}, Cgroup: -1})
		if err != nil {
			b.Fatal(err)
		}
		wait(b, p)
	}
}

func BenchmarkForkExec(b *testing.B) {
	n := null(b)
	for b.Loop() {
		pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{Dir: "/", Files: []uintptr{uintptr(n), uintptr(n), uintptr(n)}})
		if err != nil {
			b.Fatal(err)
		}
		Reap(pid)
	}
}
