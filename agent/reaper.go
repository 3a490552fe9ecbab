package agent

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/spawn"
)

// reaper is the one owner of wait statuses. A command's pump collects its
// leader; the loop collects orphans that the kernel handed to the agent, and
// keeps a status that it took before the pump came for it.
type reaper struct {
	adopts   bool // the kernel hands orphans to the agent
	mu       sync.Mutex
	starting int                // starts under way: any child may be a leader
	owned    map[int]*spawn.End // leaders; nil until collected by the loop
	early    map[int]spawn.End  // collected while starts were under way
}

func newReaper(adopts bool) *reaper {
	return &reaper{adopts: adopts, owned: map[int]*spawn.End{}, early: map[int]spawn.End{}}
}

// begin must be called before a child is started, and own or abandon after.
func (r *reaper) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting++
}

// own ends a begin. A pid of 0 is ignored.
func (r *reaper) own(pids ...int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, pid := range pids {
		if pid > 0 {
			r.adoptLocked(pid)
		}
	}
	r.done()
}

// forget drops a supervisor that was waited for.
func (r *reaper) forget(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.owned, pid)
}

func (r *reaper) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done()
}

func (r *reaper) done() {
	if r.starting--; r.starting == 0 {
		clear(r.early)
	}
}

// adopt makes a process a leader that the kernel handed to the agent.
func (r *reaper) adopt(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.adoptLocked(pid)
}

func (r *reaper) adoptLocked(pid int) {
	r.owned[pid] = nil
	if e, ok := r.early[pid]; ok {
		r.owned[pid] = &e
		delete(r.early, pid)
	}
}

// collect returns how an owned leader ended, false while it runs.
func (r *reaper) collect(pid int) (spawn.End, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.owned[pid]; e != nil {
		delete(r.owned, pid)
		return *e, true, nil
	}
	e, ok, err := spawn.Wait(pid)
	if ok || err != nil {
		delete(r.owned, pid)
	}
	return e, ok, err
}

// stray reports whether a child of the agent was handed to it by the kernel. An
// agent that no orphans come to has none, and may share its process with others.
func (r *reaper) stray(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, owned := r.owned[pid]
	return r.adopts && !owned && r.starting == 0
}

// pause lets pumps collect their own leaders first, so that the usual end of a
// command costs the loop nothing.
const pause = 20 * time.Millisecond

// run collects orphans until ctx ends.
func (r *reaper) run(ctx context.Context) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	defer signal.Stop(children)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			r.sweep()
		case <-ctx.Done():
			return
		}
		select {
		case <-children:
			timer.Reset(pause)
		case <-ctx.Done():
			return
		}
	}
}

func (r *reaper) sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, &usage)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		end := spawn.EndOf(status, &usage)
		if _, ok := r.owned[pid]; ok {
			r.owned[pid] = &end
		} else if r.starting > 0 {
			r.early[pid] = end
		}
	}
}
