package tree

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/spawn"
)

// Cgroup is the tree of one command that has a cgroup.
type Cgroup struct {
	pool *Cgroups
	dir  string
	fd   int

	mu       sync.Mutex // held while signals are sent, and while the cgroup is released
	released bool       // the cgroup is empty and belongs to another command
	// killed is set once cgroup.kill was used. Linux then kills every child that
	// clone3 starts into the cgroup, so it cannot be used again.
	killed bool
	// baseUser and baseSystem are what earlier commands in this cgroup used.
	baseUser, baseSystem int64
}

var _ Tree = (*Cgroup)(nil)

// FD returns the descriptor of the cgroup's directory, for spawn.Spec.
func (g *Cgroup) FD() int { return g.fd }

// probe starts a program that does not exist: the child joins the cgroup before
// it fails.
func (g *Cgroup) probe() error {
	if err := unix.Access(filepath.Join(g.dir, "cgroup.kill"), unix.W_OK); err != nil {
		return fmt.Errorf("cgroup.kill in %s: %w", g.dir, err)
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("probe cgroup: %w", err)
	}
	defer func() { _ = null.Close() }()
	n := int(null.Fd())
	_, err = spawn.Start(spawn.Spec{
		Path: "/proc/self/nothing", Argv: []string{"nothing"}, Dir: "/",
		Files: [4]int{n, n, n, -1}, Cgroup: g.fd,
	})
	if !errors.Is(err, spawn.ErrExec) || !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("start a process in %s: %w", g.dir, err)
	}
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("pidfd: %w", err)
	}
	_ = unix.Close(self)
	return nil
}

func (g *Cgroup) remove() {
	_ = unix.Close(g.fd)
	_ = os.Remove(g.dir)
}

func (g *Cgroup) populated() bool {
	b, err := os.ReadFile(filepath.Join(g.dir, "cgroup.events"))
	return err == nil && bytes.Contains(b, []byte("populated 1"))
}

// Kill implements Tree.
func (g *Cgroup) Kill() bool {
	for deadline := time.Now().Add(killTime); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		empty := false
		killing.Do(func() { empty = g.killOnce() })
		if empty {
			return true
		}
	}
	return false
}

// killOnce reports whether no process is left.
func (g *Cgroup) killOnce() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.released {
		return true
	}
	g.killed = true
	err := os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0)
	return errors.Is(err, os.ErrNotExist) || !g.populated()
}

// Signal implements Tree.
func (g *Cgroup) Signal(sig unix.Signal) int {
	if sig == unix.SIGKILL {
		n := len(g.Pids())
		g.Kill()
		return n
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, pid := range g.members() {
		if unix.Kill(pid, sig) == nil {
			n++
		}
	}
	return n
}

// Pids implements Tree.
func (g *Cgroup) Pids() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.members()
}

// members requires mu.
func (g *Cgroup) members() []int {
	if g.released {
		return nil
	}
	var list []int
	_ = filepath.WalkDir(g.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil
		}
		b, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for _, line := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(line); err == nil && pid > 0 {
				list = append(list, pid)
			}
		}
		return nil
	})
	return list
}

// Release implements Tree.
func (g *Cgroup) Release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reusable() {
		// A new value, so that a holder of this one cannot reach the next command.
		next := &Cgroup{pool: g.pool, dir: g.dir, fd: g.fd}
		next.baseUser, next.baseSystem = g.cpu()
		if g.pool.put(next) {
			g.released = true
			return
		}
	}
	_ = unix.Close(g.fd)
	g.pool.discard(g.dir)
}

// reusable reports whether another command can use the cgroup.
func (g *Cgroup) reusable() bool {
	if g.killed || g.pool.memory || !bytes.Contains(g.file("cgroup.events"), []byte("populated 0")) {
		return false
	}
	n, ok := counter(g.file("cgroup.stat"), "nr_descendants")
	return ok && n == 0
}

// Usage implements Tree. It reads the counters of the controllers that the
// cgroup has.
func (g *Cgroup) Usage(u *Usage) {
	user, system := g.cpu()
	u.User = max(u.User, time.Duration(user-g.baseUser)*time.Microsecond)
	u.System = max(u.System, time.Duration(system-g.baseSystem)*time.Microsecond)
	if !g.pool.memory {
		return
	}
	if b, err := os.ReadFile(filepath.Join(g.dir, "memory.peak")); err == nil {
		if v, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
			u.Peak, u.WholePeak = v, true
		}
	}
	events, err := os.ReadFile(filepath.Join(g.dir, "memory.events"))
	if err == nil {
		u.OOMKills, u.OOMKnown = counter(events, "oom_kill")
	}
}

// cpu returns microseconds in user mode and in the kernel.
func (g *Cgroup) cpu() (user, system int64) {
	stat := g.file("cpu.stat")
	user, _ = counter(stat, "user_usec")
	system, _ = counter(stat, "system_usec")
	return user, system
}

// file reads a short file of the cgroup. It returns nil if the cgroup is gone.
func (g *Cgroup) file(name string) []byte {
	fd, err := unix.Openat(g.fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	buf := make([]byte, 1024)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil
	}
	return buf[:n]
}

// counter finds a line "name value" of a cgroup file.
func counter(stat []byte, name string) (int64, bool) {
	for line := range bytes.Lines(stat) {
		if key, value, ok := bytes.Cut(line, []byte(" ")); ok && string(key) == name {
			v, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
			return v, err == nil
		}
	}
	return 0, false
}
