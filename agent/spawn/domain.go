package spawn

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrPrivileges is returned by Restrict and NotifyConnects if programs can gain
// privileges, such as by sudo, which a domain or a filter would prevent.
var ErrPrivileges = errors.New("programs may gain privileges here")

// parentThread is the thread of the agent that starts commands, once Restrict,
// RefuseClone3 or NotifyConnects was called. All commands inherit its Landlock domain
// and its seccomp filters. They need to be in the same domain, because processes of two
// domains can't signal each other. It is a thread and not a process, so that commands
// can't kill it.
type parentThread struct{ requests chan *forkRequest }

type forkRequest struct {
	prepare      func() error // called instead of a fork, if set
	stack        *childStack
	pid, reports int
	err          error
	done         chan struct{}
}

var parent *parentThread

// Restrict makes all commands start in a Landlock domain with the rules of the
// given ruleset, which it does not close. It must be called at most once, before
// the first Start. It does not restrict the rest of the agent.
func Restrict(ruleset int) error {
	return onParent(func() error { return restrictThread(ruleset) })
}

// onParent calls prepare on the thread that commands descend from, which it makes if
// there is none.
func onParent(prepare func() error) error {
	if parent != nil {
		q := &forkRequest{prepare: prepare, done: make(chan struct{})}
		parent.requests <- q
		<-q.done
		return q.err
	}
	p := &parentThread{requests: make(chan *forkRequest)}
	ready := make(chan error)
	go p.run(prepare, ready)
	if err := <-ready; err != nil {
		return err
	}
	parent = p
	return nil
}

// run never unlocks its thread, so the thread ends with the goroutine.
func (p *parentThread) run(prepare func() error, ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The kernel checks a signal to the agent against the domain of its first
		// thread, which must stay unrestricted.
		next := make(chan error)
		go p.run(prepare, next)
		ready <- <-next
		runtime.UnlockOSThread()
		return
	}
	if err := prepare(); err != nil {
		ready <- err
		return
	}
	ready <- nil
	for r := range p.requests {
		if r.prepare != nil {
			r.err = r.prepare()
			close(r.done)
			continue
		}
		r.pid, r.reports, r.err = lockedFork(r.stack)
		close(r.done)
	}
}

func restrictThread(ruleset int) error {
	// Commands can signal this thread, unlike the rest of the agent. They can't end
	// it: it blocks all signals that can be blocked, and process 1 of a pid namespace
	// can't be killed from inside.
	all := ^uint64(0)
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), 0, 8, 0, 0)
	if errno != 0 {
		return fmt.Errorf("block signals: %w", errno)
	}
	_, _, errno = unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0)
	if errno == unix.EPERM {
		// The kernel requires a privilege or no_new_privs.
		if err := forgoPrivileges(); err != nil {
			return err
		}
		_, _, errno = unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0)
	}
	if errno != 0 {
		return fmt.Errorf("enter Landlock domain: %w", errno)
	}
	return nil
}

// forgoPrivileges sets no_new_privs for the calling thread and for commands, unless
// it would take privileges from them.
func forgoPrivileges() error {
	if os.Geteuid() != 0 {
		return ErrPrivileges
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// startFork forks the child on the thread that commands descend from. It returns
// the descriptor of the child's reports.
func startFork(r *childStack) (pid, reports int, err error) {
	if parent == nil {
		return lockedFork(r)
	}
	q := &forkRequest{stack: r, done: make(chan struct{})}
	parent.requests <- q
	<-q.done
	return q.pid, q.reports, q.err
}

// lockedFork makes the pipe of the reports under the lock too. Another child that
// inherited its writing end would delay its end until execve.
func lockedFork(r *childStack) (pid, reports int, err error) {
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return 0, -1, err
	}
	r.child.pipe = pipe[1]
	pid, errno := fork(r)
	_ = unix.Close(pipe[1])
	if errno != 0 {
		_ = unix.Close(pipe[0])
		return 0, -1, errno
	}
	return pid, pipe[0], nil
}
