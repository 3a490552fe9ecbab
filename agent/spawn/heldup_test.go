package spawn

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// leased returns a program that nobody can open: execve waits until release is called,
// or for the kernel's 45 s.
func leased(t *testing.T) (path string, release func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "leased")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("the file system of the temporary directory has no leases:", err)
	}
	return path, func() { _ = f.Close() }
}

// startModes are a supervised command and, where the test can make a cgroup, one in
// its cgroup.
func startModes(t *testing.T, run func(t *testing.T, cgroup int)) {
	t.Run("supervised", func(t *testing.T) { run(t, -1) })
	t.Run("cgroup", func(t *testing.T) { run(t, testCgroup(t)) })
}

// testCgroup makes a cgroup of version 2.
func testCgroup(t *testing.T) int {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue
		}
		dir, err := os.MkdirTemp(root, "spawn-test-")
		if err != nil {
			continue
		}
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = unix.Close(fd)
			for end := time.Now().Add(time.Minute); os.Remove(dir) != nil; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Errorf("%s is not empty", dir)
					return
				}
			}
		})
		return fd
	}
	t.Skip("no cgroup of version 2 can be made")
	return -1
}

// One start whose execve is held up delays neither others nor the agent.
func TestHeldUpStart(t *testing.T) {
	startModes(t, func(t *testing.T, cgroup int) {
		n := null(t)
		path, _ := leased(t)
		held := Spec{Path: path, Argv: []string{"x"}, Dir: "/", Files: [4]int{n, n, n, -1}, Cgroup: cgroup, Timeout: 500 * time.Millisecond}
		var all sync.WaitGroup
		var ended [4]error
		for i := range ended {
			all.Go(func() { _, ended[i] = Start(held) })
		}
		for range 20 {
			p, err := Start(Spec{Path: "/bin/sh", Argv: []string{"sh", "-c", "exit 7"}, Dir: "/", Files: [4]int{n, n, n, -1}, Cgroup: cgroup})
			if err != nil {
				t.Fatal(err)
			}
			runtime.GC() // stops the world: no thread may be stuck in a fork
			if e := wait(t, p); e.Status.ExitStatus() != 7 {
				t.Fatalf("status %v", e.Status)
			}
		}
		all.Wait()
		for _, err := range ended {
			if !errors.Is(err, ErrTimeout) || !errors.Is(err, ErrExec) {
				t.Errorf("got %v, want %v", err, ErrTimeout)
			}
		}
		nothingLeft(t)
	})
}

// A command that is stopped before execve is ended, and the next one starts.
func TestStoppedStart(t *testing.T) {
	startModes(t, func(t *testing.T, cgroup int) {
		n := null(t)
		path, _ := leased(t)
		spec := Spec{Path: path, Argv: []string{"x"}, Dir: "/", Files: [4]int{n, n, n, -1}, Cgroup: cgroup, Timeout: time.Second}
		done := make(chan error, 1)
		go func() {
			_, err := Start(spec)
			done <- err
		}()
		_ = unix.Kill(firstChild(t), unix.SIGSTOP)
		if err := <-done; !errors.Is(err, ErrTimeout) {
			t.Errorf("got %v, want %v", err, ErrTimeout)
		}
		nothingLeft(t)
	})
}

// A command that is held up before execve is ended too if another program has killed
// its supervisor. It still uses the memory of the start.
func TestHeldUpStartWithoutSupervisor(t *testing.T) {
	n := null(t)
	path, _ := leased(t)
	spec := Spec{Path: path, Argv: []string{"x"}, Dir: "/", Files: [4]int{n, n, n, -1}, Cgroup: -1, Timeout: 2 * time.Second}
	command := -1
	for command < 0 { // a busy machine may see the start only after its end
		done := make(chan error, 1)
		go func() {
			_, err := Start(spec)
			done <- err
		}()
		for command < 0 && len(done) == 0 {
			for _, supervisor := range children(t) {
				if below := childrenOf(t, supervisor); len(below) > 0 {
					command = pidfd(below[0])
					_ = unix.Kill(supervisor, unix.SIGKILL)
				}
			}
		}
		if err := <-done; !errors.Is(err, ErrTimeout) {
			t.Errorf("got %v, want %v", err, ErrTimeout)
		}
	}
	defer func() { _ = unix.Close(command) }()
	if !waitExit(command, 30*time.Second) {
		t.Error("the command is left")
	}
	nothingLeft(t)
}

// nothingLeft waits until supervisors that exit are reaped.
func nothingLeft(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); len(children(t)) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("left: %v", children(t))
		}
	}
}

// firstChild waits for a child.
func firstChild(t *testing.T) int {
	t.Helper()
	for {
		if list := children(t); len(list) > 0 {
			return list[0]
		}
		runtime.Gosched()
	}
}

// children returns the children of this process.
func children(t *testing.T) []int {
	t.Helper()
	return childrenOf(t, os.Getpid())
}

func childrenOf(t *testing.T, parent int) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Error(err)
	}
	var list []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && parentOf(pid) == parent {
			list = append(list, pid)
		}
	}
	return list
}

// While a start is held up, it keeps no descriptor of the agent open.
func TestHeldUpStartHoldsNothing(t *testing.T) {
	n, cgroup := null(t), testCgroup(t)
	path, release := leased(t)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pipe[0]) }()
	type result struct {
		p   *Process
		err error
	}
	done := make(chan result, 1)
	go func() {
		p, err := Start(Spec{Path: path, Argv: []string{"x"}, Dir: "/", Files: [4]int{n, n, n, -1}, Cgroup: cgroup, Timeout: time.Minute})
		done <- result{p, err}
	}()
	firstChild(t) // it has the pipe until it closes it
	_ = unix.Close(pipe[1])
	var b [1]byte
	if got, err := syscall.Read(pipe[0], b[:]); got != 0 || err != nil {
		t.Errorf("read %d, %v", got, err)
	}
	release()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	if e := wait(t, r.p); e.Status.ExitStatus() != 0 {
		t.Errorf("status %v", e.Status)
	}
}
