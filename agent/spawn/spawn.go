// Package spawn starts commands without a shell or helper program, each in a session
// of its own, so that every descendant can be found again. A command with a cgroup
// is started in it by clone3 or, if a seccomp filter refuses clone3, moves there
// before execve. A command without a cgroup has a supervisor above it: a forked child
// of the agent, without execve, which is the subreaper of all descendants.
//
// Commands get a raised oom_score_adj, so that the kernel kills them before the
// agent.
package spawn

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Errors of a failed start, by stage.
var (
	// ErrDir is wrapped if the working directory can't be entered.
	ErrDir = errors.New("enter working directory")
	// ErrExec is wrapped if the program can't be executed.
	ErrExec = errors.New("execute")
	// ErrSetup is wrapped if an earlier step failed.
	ErrSetup = errors.New("set up process")
	// ErrTimeout is wrapped if execve took longer than the timeout. The process was
	// killed.
	ErrTimeout = errors.New("start took too long")
)

// startTimeout is the default of Spec.Timeout.
const startTimeout = 10 * time.Second

// Spec describes a command.
type Spec struct {
	Path string // the file to execute
	Argv []string
	Env  []string
	Dir  string
	// Files become descriptors 0, 1, 2 and, unless negative, 3. The first three must
	// be at least 3, the last at least 4.
	Files [4]int
	// Terminal makes descriptor 0 the controlling terminal.
	Terminal bool
	// Cgroup is a descriptor of the cgroup directory to join, or -1 for a
	// supervisor.
	Cgroup int
	// OOMScoreAdj is added to the agent's own oom_score_adj, up to the kernel's
	// limit of 1000.
	OOMScoreAdj int
	// Ruleset is one more than the descriptor of a Landlock ruleset for this command,
	// in addition to that of Restrict. 0: none.
	Ruleset int
	// Timeout bounds the start. Other programs can hold it up: they can stop the
	// process, or own the file system of the program. 0: 10 s.
	Timeout time.Duration
}

// Process is a started command.
type Process struct {
	Pid        int // the command's leader
	Supervisor int // the process above it, 0 if none
	// PidFD is the pidfd of the leader. Below a supervisor it is -1 if the leader
	// exited before it could be opened; then the supervisor reports the end.
	PidFD int
	// Reports is the descriptor of the supervisor's reports, -1 if none. It is
	// non-blocking.
	Reports int
	memory  []byte // of the supervisor
	exiting bool
}

// End is how a leader ended.
type End struct {
	Status       syscall.WaitStatus
	User, System time.Duration
	MaxRSS       int64 // bytes
}

// features are the system calls that the kernel and a seccomp filter allow.
var features struct {
	once       sync.Once
	clone3     bool
	closeRange bool
}

// probe must be called before the agent is made untraceable.
func probe() {
	features.once.Do(func() {
		// With invalid arguments: a filter answers before the kernel checks them.
		_, _, errno := syscall.RawSyscall(unix.SYS_CLONE3, 0, 0, 0)
		features.clone3 = errno != syscall.ENOSYS && errno != syscall.EPERM
		_, _, errno = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, 1<<31-2, 1<<31-2, 0)
		features.closeRange = errno == 0
		oomScore.init()
	})
}

// Start starts a command. It returns after execve has succeeded or failed, at the
// latest after the timeout. While it waits it holds no thread.
func Start(s Spec) (*Process, error) {
	probe()
	var strings arguments
	if err := strings.set(&s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrExec, err)
	}
	mem, err := takeStack()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSetup, err)
	}
	r := (*childStack)(unsafe.Pointer(&mem[0]))
	c := &r.child
	c.path, c.dir, c.argv, c.env = strings.path, strings.dir, &strings.argv[0], &strings.env[0]
	c.fds, c.terminal = s.Files, s.Terminal
	c.cgroup, c.bornIn, c.supervise, c.pidfd = -1, -1, s.Cgroup < 0, -1
	c.ruleset = s.Ruleset - 1
	copy(c.name[:15], "sandgate-super")
	c.allSignals = ^uint64(0)
	c.nofile = nofile()
	if !features.closeRange {
		c.maxFD = highestFD()
	}
	switch {
	case s.Cgroup >= 0 && features.clone3:
		c.bornIn = s.Cgroup
	case s.Cgroup >= 0:
		procs, err := unix.Openat(s.Cgroup, "cgroup.procs", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			putStack(mem)
			return nil, fmt.Errorf("%w: %w", ErrSetup, err)
		}
		defer func() { _ = unix.Close(procs) }()
		c.cgroup = procs
	}

	defer oomScore.raise(s.OOMScoreAdj)()
	pid, reports, err := startFork(r)
	if err != nil {
		putStack(mem)
		return nil, fmt.Errorf("%w: fork: %w", ErrSetup, err)
	}
	b := &birth{child: c, pid: pid, leader: pid, memory: mem, strings: strings, pipe: reports}
	return b.await(cmp.Or(s.Timeout, startTimeout))
}

func pidfd(pid int) int {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1
	}
	return fd
}

// arguments are what the child passes to the kernel. The garbage collector does not
// see the pointers in the child's memory, which is outside of the heap, so they must
// be kept alive until execve.
type arguments struct {
	path, dir *byte
	argv, env []*byte
}

func (a *arguments) set(s *Spec) error {
	var errs [4]error
	a.path, errs[0] = unix.BytePtrFromString(s.Path)
	a.dir, errs[1] = unix.BytePtrFromString(s.Dir)
	a.argv, errs[2] = syscall.SlicePtrFromStrings(s.Argv)
	a.env, errs[3] = syscall.SlicePtrFromStrings(s.Env)
	return errors.Join(errs[:]...)
}

// nofile returns RLIMIT_NOFILE for commands. The Go runtime raises the agent's own
// soft limit, which programs that use select must not inherit.
func nofile() unix.Rlimit {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return unix.Rlimit{Cur: 1024, Max: 4096}
	}
	l.Cur = min(l.Max, 1024)
	return l
}

func highestFD() int {
	highest := 1024
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 1 << 16
	}
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			highest = max(highest, n)
		}
	}
	return highest + 64
}

// SetCloseOnExec sets close-on-exec on every descriptor from 3 up: commands must not inherit
// the agent's.
func SetCloseOnExec() {
	if unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	for fd := 3; fd <= highestFD(); fd++ {
		unix.CloseOnExec(fd)
	}
}
