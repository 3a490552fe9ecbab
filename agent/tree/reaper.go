package tree

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/spawn"
)

// Reaper owns all wait statuses of the agent's children. A command's pump
// collects the status of its leader. Run collects orphans that the agent adopted,
// and keeps the status of a leader that it reaps before the pump does. It also ends
// supervisors that are stopped.
type Reaper struct {
	adopts   bool // the agent is a subreaper or process 1
	mu       sync.Mutex
	starting int                // starts in progress: any child may be a leader
	owned    map[int]*spawn.End // leaders and supervisors; nil until Run reaps one
	early    map[int]spawn.End  // reaped while starts were in progress
}

// NewReaper returns a reaper. adopts tells that the kernel makes orphans children
// of the agent.
func NewReaper(adopts bool) *Reaper {
	return &Reaper{adopts: adopts, owned: map[int]*spawn.End{}, early: map[int]spawn.End{}}
}

// Begin must be called before a start, and Own or Abandon after it.
func (r *Reaper) Begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting++
}

// Own ends a Begin after a successful start. A leader below a supervisor is owned
// too: it becomes a child of the agent whenever the supervisor is killed.
func (r *Reaper) Own(p *spawn.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, pid := range []int{p.Pid, p.Supervisor} {
		if pid > 0 {
			r.own(pid)
		}
	}
	r.done()
}

// Forget removes a process that the agent will not reap any more.
func (r *Reaper) Forget(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.owned, pid)
}

// Abandon ends a Begin after a failed start.
func (r *Reaper) Abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done()
}

func (r *Reaper) done() {
	if r.starting--; r.starting == 0 {
		clear(r.early)
	}
}

// own requires mu.
func (r *Reaper) own(pid int) {
	r.owned[pid] = nil
	if e, ok := r.early[pid]; ok {
		r.owned[pid] = &e
		delete(r.early, pid)
	}
}

// Collect returns how a leader ended, and false while it runs.
func (r *Reaper) Collect(pid int) (spawn.End, bool, error) {
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

// orphan reports whether the agent adopted this child. An agent that adopts no
// orphans may share its process with other code that starts children.
func (r *Reaper) orphan(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, owned := r.owned[pid]
	return r.adopts && !owned && r.starting == 0
}

// reapDelay lets pumps collect their own leaders first, so that Run does nothing at
// the usual end of a command.
const reapDelay = 20 * time.Millisecond

// Run reaps orphans until ctx is done.
func (r *Reaper) Run(ctx context.Context) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	defer signal.Stop(children)
	timer := time.NewTimer(reapDelay)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			r.reap()
			endStopped()
		case <-ctx.Done():
			return
		}
		select {
		case <-children:
			timer.Reset(reapDelay)
		case <-ctx.Done():
			return
		}
	}
}

func (r *Reaper) reap() {
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

// endStopped kills the supervisors that are stopped, which a command can do to them.
// They would report no end. Their descendants become children of the agent.
func endStopped() {
	for {
		var info unix.Siginfo
		// __WCLONE finds the children that exit without a signal: supervisors.
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WSTOPPED|unix.WNOHANG|unix.WCLONE, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		pid := stoppedPid(&info)
		if err != nil || pid == 0 {
			return
		}
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// stoppedPid returns the member si_pid, the first of the union, 0 if no child was
// found.
func stoppedPid(info *unix.Siginfo) int {
	const header = 3 * 4 // si_signo, si_errno, si_code
	align := unsafe.Alignof(uintptr(0))
	offset := (header + align - 1) &^ (align - 1)
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), offset)))
}
