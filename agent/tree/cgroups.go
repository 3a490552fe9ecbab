package tree

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/fault"
)

// Cgroups is a pool of cgroups, one per command, below a delegated directory.
// Making and removing a cgroup takes a lock that a start needs too. So the pool
// makes some ahead, reuses empty ones, and removes the rest in the background.
// With the memory controller it reuses none, because a peak cannot be reset.
type Cgroups struct {
	dir    string
	ready  chan *Cgroup
	next   atomic.Int64
	memory bool

	mu      sync.Mutex
	closed  bool
	garbage map[string]int // directories to remove, and how often that failed
	timer   *time.Timer
	wg      sync.WaitGroup
	stop    chan struct{}
	wanted  chan struct{}

	recovery fault.Recovery
}

const (
	cgroupsAhead = 2  // made ahead
	cgroupsKept  = 16 // kept for reuse
)

// NewCgroups returns a pool below dir. It first checks that processes can be
// started and killed in a cgroup there; if not, it returns an error and leaves
// nothing behind.
func NewCgroups(dir string, r fault.Recovery) (*Cgroups, error) {
	p := &Cgroups{dir: dir, recovery: r, ready: make(chan *Cgroup, cgroupsKept), garbage: map[string]int{}, stop: make(chan struct{}), wanted: make(chan struct{}, 1)}
	if controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers")); err == nil {
		if bytes.Contains(controllers, []byte("memory")) {
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0)
		}
	}
	p.removeLeftovers()
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

// removeLeftovers removes the cgroups of an earlier agent.
func (p *Cgroups) removeLeftovers() {
	old, _ := filepath.Glob(filepath.Join(p.dir, "cmd-*"))
	for _, dir := range old {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		_ = removeTree(dir)
	}
}

func (p *Cgroups) make() (*Cgroup, error) {
	dir := filepath.Join(p.dir, "cmd-"+strconv.FormatInt(p.next.Add(1), 10))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = os.Remove(dir)
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	return &Cgroup{pool: p, dir: dir, fd: fd}, nil
}

func (p *Cgroups) fill() {
	defer p.wg.Done()
	for {
		select {
		case <-p.wanted:
		case <-p.stop:
			return
		}
		p.recovery.Guard("cgroup pool: fill", p.refill)
	}
}

func (p *Cgroups) refill() {
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

// Take returns a cgroup for a command, which must Release it.
func (p *Cgroups) Take() (*Cgroup, error) {
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

// put keeps an empty cgroup for the next command. It returns false if the pool
// is full or closed.
func (p *Cgroups) put(g *Cgroup) bool {
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

// Close removes the cgroups that no command has.
func (p *Cgroups) Close() {
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
	p.removeGarbage()
	p.mu.Lock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
}

// discard removes a directory in the background. It retries until the directory
// is empty.
func (p *Cgroups) discard(dir string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.garbage[dir] = 0
	p.schedule(10 * time.Millisecond)
}

// schedule requires mu.
func (p *Cgroups) schedule(d time.Duration) {
	switch {
	case p.closed:
	case p.timer == nil:
		p.timer = time.AfterFunc(d, func() { p.recovery.Guard("cgroup pool: remove", p.removeGarbage) })
	default:
		p.timer.Reset(d)
	}
}

func (p *Cgroups) removeGarbage() {
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
		p.schedule(min(10*time.Millisecond<<min(fails, 10), 5*time.Second))
	}
}

// removeTree removes a cgroup and the ones that its processes made below it.
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
