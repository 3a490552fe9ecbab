package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/spawn"
)

// cgroups keeps one cgroup per command below a delegated directory. Making and
// removing one takes a lock that a start needs too, so an empty cgroup is used
// again, some are made ahead of time, and the others are removed behind the
// scenes. With the memory controller none is used again: its peak cannot be
// set back.
type cgroups struct {
	dir    string
	ready  chan *cgroup
	next   atomic.Int64
	memory bool

	mu      sync.Mutex
	closed  bool
	garbage map[string]int // directories to remove, and how often that failed
	timer   *time.Timer
	wg      sync.WaitGroup
	stop    chan struct{}
	wanted  chan struct{}

	recovery recovery
}

// cgroup is the tree of one command.
type cgroup struct {
	pool *cgroups
	dir  string
	fd   int

	mu   sync.Mutex // held while signals are sent, and to give the cgroup away
	dead bool       // it is empty and belongs to another command
	// hurt is set once cgroup.kill was used: Linux then kills every child that
	// clone3 starts into the cgroup, so it cannot be used again.
	hurt bool
	// What earlier commands in this cgroup used.
	user, system int64
}

var _ tree = (*cgroup)(nil)

const (
	cgroupsAhead = 2  // made before they are needed
	cgroupsKept  = 16 // kept to be used again
)

// newCgroups checks that commands can really be put below dir and killed
// there; otherwise it returns an error and leaves nothing behind.
func newCgroups(dir string, r recovery) (*cgroups, error) {
	p := &cgroups{dir: dir, recovery: r, ready: make(chan *cgroup, cgroupsKept), garbage: map[string]int{}, stop: make(chan struct{}), wanted: make(chan struct{}, 1)}
	if controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers")); err == nil {
		if bytes.Contains(controllers, []byte("memory")) {
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0)
		}
	}
	p.sweepLeftovers()
	g, err := p.make()
	if err != nil {
		return nil, err
	}
	if err := g.probe(); err != nil {
		g.remove()
		return nil, err
	}
	_, err = os.Stat(filepath.Join(g.dir, "memory.events"))
	p.memory = err == nil
	p.ready <- g
	p.wg.Add(1)
	go p.fill()
	return p, nil
}

// probe starts something that does not exist: the child joins the cgroup
// before it fails.
func (g *cgroup) probe() error {
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

// sweepLeftovers removes what an agent before us left in the directory.
func (p *cgroups) sweepLeftovers() {
	old, _ := filepath.Glob(filepath.Join(p.dir, "cmd-*"))
	for _, dir := range old {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		_ = removeTree(dir)
	}
}

func (p *cgroups) make() (*cgroup, error) {
	dir := filepath.Join(p.dir, "cmd-"+strconv.FormatInt(p.next.Add(1), 10))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = os.Remove(dir)
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	return &cgroup{pool: p, dir: dir, fd: fd}, nil
}

func (p *cgroups) fill() {
	defer p.wg.Done()
	for {
		select {
		case <-p.wanted:
		case <-p.stop:
			return
		}
		p.recovery.guard("the making of cgroups", p.refill)
	}
}

func (p *cgroups) refill() {
	for len(p.ready) < cgroupsAhead {
		g, err := p.make()
		if err != nil {
			return
		}
		if !p.put(g) {
			g.remove()
			return
		}
	}
}

func (p *cgroups) take() (*cgroup, error) {
	select {
	case g := <-p.ready:
		if len(p.ready) == 0 {
			select {
			case p.wanted <- struct{}{}:
			default:
			}
		}
		return g, nil
	default:
		return p.make()
	}
}

func (g *cgroup) remove() {
	_ = unix.Close(g.fd)
	_ = os.Remove(g.dir)
}

// put gives an empty cgroup to the next command, unless there are enough.
func (p *cgroups) put(g *cgroup) bool {
	select {
	case <-p.stop:
		return false
	default:
	}
	select {
	case p.ready <- g:
		return true
	default:
		return false
	}
}

func (p *cgroups) close() {
	close(p.stop)
	p.wg.Wait()
	for {
		select {
		case g := <-p.ready:
			g.remove()
			continue
		default:
		}
		break
	}
	p.collect()
	p.mu.Lock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
}

// discard removes a directory later, and again until it is empty.
func (p *cgroups) discard(dir string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.garbage[dir] = 0
	p.arm(10 * time.Millisecond)
}

func (p *cgroups) arm(d time.Duration) {
	switch {
	case p.closed:
	case p.timer == nil:
		p.timer = time.AfterFunc(d, func() { p.recovery.guard("the removal of cgroups", p.collect) })
	default:
		p.timer.Reset(d)
	}
}

func (p *cgroups) collect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	fails := -1
	for dir := range p.garbage {
		if err := removeTree(dir); err == nil || errors.Is(err, os.ErrNotExist) {
			delete(p.garbage, dir)
			continue
		}
		p.garbage[dir]++
		if fails < 0 || p.garbage[dir] < fails {
			fails = p.garbage[dir]
		}
	}
	if len(p.garbage) > 0 {
		p.arm(min(10*time.Millisecond<<min(fails, 10), 5*time.Second))
	}
}

// removeTree removes a cgroup and those that its processes made below it.
func removeTree(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			_ = removeTree(filepath.Join(dir, e.Name()))
		}
	}
	if err = unix.Rmdir(dir); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

func (g *cgroup) populated() bool {
	b, err := os.ReadFile(filepath.Join(g.dir, "cgroup.events"))
	return err == nil && bytes.Contains(b, []byte("populated 1"))
}

func (g *cgroup) kill() bool {
	for deadline := time.Now().Add(killTime); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if g.killOnce() {
			return true
		}
	}
	return false
}

// killOnce reports whether nothing is left.
func (g *cgroup) killOnce() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead {
		return true
	}
	g.hurt = true
	err := os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0)
	return errors.Is(err, os.ErrNotExist) || !g.populated()
}

func (g *cgroup) signal(sig unix.Signal) int {
	if sig == unix.SIGKILL {
		n := len(g.pids())
		g.kill()
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

func (g *cgroup) pids() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.members()
}

// members needs mu.
func (g *cgroup) members() []int {
	if g.dead {
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

func (g *cgroup) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.clean() {
		// Whoever still has the old record must not reach the next command.
		next := &cgroup{pool: g.pool, dir: g.dir, fd: g.fd}
		next.user, next.system = g.cpu()
		if g.pool.put(next) {
			g.dead = true
			return
		}
	}
	_ = unix.Close(g.fd)
	g.pool.discard(g.dir)
}

// clean reports whether the cgroup is as good as new.
func (g *cgroup) clean() bool {
	if g.hurt || g.pool.memory || !bytes.Contains(g.file("cgroup.events"), []byte("populated 0")) {
		return false
	}
	n, ok := counter(g.file("cgroup.stat"), "nr_descendants")
	return ok && n == 0
}
