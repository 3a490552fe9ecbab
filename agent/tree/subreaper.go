package tree

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/spawn"
)

// Subreaper is the tree of a command below its supervisor, where there is no cgroup.
type Subreaper struct {
	proc     *spawn.Process
	reaper   *Reaper
	released atomic.Bool // another process may have the supervisor's pid
}

var _ Tree = (*Subreaper)(nil)

// NewSubreaper returns the tree of a command that spawn started with a supervisor.
func NewSubreaper(p *spawn.Process, r *Reaper) *Subreaper { return &Subreaper{proc: p, reaper: r} }

// task is a line of /proc/<pid>/stat.
type task struct {
	pid, parent int
	state       byte
}

// tasks reads all processes. That is no snapshot: callers repeat it until the
// result no longer changes.
func tasks() []task {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil && len(names) == 0 {
		return nil
	}
	list := make([]task, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if t, ok := readTask(pid); ok {
			list = append(list, t)
		}
	}
	return list
}

func readTask(pid int) (task, bool) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return task{}, false
	}
	defer func() { _ = unix.Close(fd) }()
	var buf [512]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil || n <= 0 {
		return task{}, false
	}
	// The name in parentheses may contain parentheses; the last one ends it.
	i := bytes.LastIndexByte(buf[:n], ')')
	if i < 0 || i+4 >= n {
		return task{}, false
	}
	rest := buf[i+2 : n]
	parent := 0
	for _, c := range rest[2:] {
		if c < '0' || c > '9' {
			break
		}
		parent = parent*10 + int(c-'0')
	}
	return task{pid: pid, parent: parent, state: rest[0]}, true
}

// find returns the live processes below the supervisor. If the supervisor was
// killed, its children are the agent's: then find returns all processes below the
// leader and below every orphan that the agent adopted.
func (d *Subreaper) find() []task {
	if d.released.Load() {
		return nil
	}
	all := tasks()
	in := map[int]bool{}
	root := d.proc.Supervisor
	lost := !slices.ContainsFunc(all, func(t task) bool {
		return t.pid == root && t.state != 'Z' && t.parent == os.Getpid()
	})
	if lost {
		for _, t := range all {
			if t.parent == os.Getpid() && (t.pid == d.proc.Pid || d.reaper.orphan(t.pid)) {
				in[t.pid] = true
			}
		}
	} else {
		in[root] = true
	}
	for grown := true; grown; {
		grown = false
		for _, t := range all {
			if !in[t.pid] && in[t.parent] {
				in[t.pid], grown = true, true
			}
		}
	}
	var found []task
	for _, t := range all {
		if in[t.pid] && t.pid != root && t.state != 'Z' && t.state != 'X' {
			found = append(found, t)
		}
	}
	return found
}

// Kill stops all processes before it kills them. A stopped process starts none, so
// a pass that finds every process stopped has found them all.
func (d *Subreaper) Kill() bool {
	for deadline := time.Now().Add(killTime); time.Now().Before(deadline); {
		left := 0
		killing.Do(func() { left = d.killOnce() })
		if left == 0 {
			return true
		}
		// A killed process needs a moment until it is gone.
		time.Sleep(time.Millisecond)
	}
	return len(d.find()) == 0
}

// killOnce returns how many processes it found.
// killOnce stops and kills the processes that it finds, and returns how many.
func (d *Subreaper) killOnce() int {
	found := d.find()
	for pass := 0; pass < 100; pass++ {
		moving := false
		for _, t := range found {
			if t.state != 'T' && t.state != 't' && t.state != 'D' {
				moving = true
				_ = unix.Kill(t.pid, unix.SIGSTOP)
				// Its later children inherit this limit, so a fork bomb of an
				// ordinary user cannot outrun the loop.
				_ = unix.Prlimit(t.pid, unix.RLIMIT_NPROC, &unix.Rlimit{}, nil)
			}
		}
		if !moving {
			break
		}
		found = d.find()
	}
	for _, t := range found {
		_ = unix.Kill(t.pid, unix.SIGKILL)
	}
	return len(found)
}

// Signal implements Tree.
func (d *Subreaper) Signal(sig unix.Signal) int {
	if sig == unix.SIGKILL {
		n := len(d.find())
		d.Kill()
		return n
	}
	n := 0
	for _, t := range d.find() {
		if unix.Kill(t.pid, sig) == nil {
			n++
		}
	}
	return n
}

// Pids implements Tree.
func (d *Subreaper) Pids() []int {
	var list []int
	for _, t := range d.find() {
		list = append(list, t.pid)
	}
	return list
}

// Usage implements Tree. It adds nothing: only cgroups count.
func (d *Subreaper) Usage(*Usage) {}

// Release implements Tree.
func (d *Subreaper) Release() { d.released.Store(true) }
