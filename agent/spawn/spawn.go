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
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
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
)

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

func probe() {
	features.once.Do(func() {
		// With invalid arguments: a filter answers before the kernel checks them.
		_, _, errno := syscall.RawSyscall(unix.SYS_CLONE3, 0, 0, 0)
		features.clone3 = errno != syscall.ENOSYS && errno != syscall.EPERM
		_, _, errno = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, 1<<31-2, 1<<31-2, 0)
		features.closeRange = errno == 0
	})
}

// Start starts a command. It returns after execve has succeeded or failed.
func Start(s Spec) (*Process, error) {
	probe()
	defer oomScore.raise(s.OOMScoreAdj)()
	mem, err := takeStack()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSetup, err)
	}
	defer func() {
		if mem != nil {
			putStack(mem)
		}
	}()
	r := (*childStack)(unsafe.Pointer(&mem[0]))
	c := &r.child

	// The garbage collector does not see the pointers in the child's memory, which is
	// outside of the heap. keepAlive keeps their targets alive until execve.
	var keepAlive struct {
		path, dir, oom *byte
		argv, env      []*byte
	}
	if err := errors.Join(
		set(&keepAlive.path, s.Path), set(&keepAlive.dir, s.Dir), set(&keepAlive.oom, "/proc/self/oom_score_adj"),
		setAll(&keepAlive.argv, s.Argv), setAll(&keepAlive.env, s.Env),
	); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrExec, err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSetup, err)
	}
	defer func() {
		if pipe[1] >= 0 {
			_ = unix.Close(pipe[1])
		}
	}()

	c.path, c.dir, c.oomPath = keepAlive.path, keepAlive.dir, keepAlive.oom
	c.argv, c.env = &keepAlive.argv[0], &keepAlive.env[0]
	c.fds, c.pipe, c.terminal = s.Files, pipe[1], s.Terminal
	c.cgroup, c.bornIn, c.supervise, c.pidfd = -1, -1, s.Cgroup < 0, -1
	c.ruleset = s.Ruleset - 1
	if refusing {
		c.filter = &refusal
	}
	c.oomLen = copy(c.oomValue[:], strconv.Itoa(oomScore.above(s.OOMScoreAdj)))
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
		c.cgroup, err = unix.Openat(s.Cgroup, "cgroup.procs", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			_ = unix.Close(pipe[0])
			return nil, fmt.Errorf("%w: %w", ErrSetup, err)
		}
		defer func() { _ = unix.Close(c.cgroup) }()
	}

	pid, errno := startFork(r)
	runtime.KeepAlive(&keepAlive)
	if errno != 0 {
		_ = unix.Close(pipe[0])
		return nil, fmt.Errorf("%w: fork: %w", ErrSetup, errno)
	}
	// Without this end, the reports end when the child dies.
	_ = unix.Close(pipe[1])
	pipe[1] = -1
	p, err := c.result(pid, pipe[0])
	runtime.KeepAlive(&keepAlive)
	if err != nil {
		return nil, err
	}
	if p.Supervisor != 0 {
		p.memory, mem = mem, nil
	}
	return p, nil
}

// result waits until the child has executed the command or failed. It closes reports
// unless the process needs it.
func (c *child) result(pid, reports int) (*Process, error) {
	last, err := readReport(reports)
	leader := pid
	if err == nil && last.kind == reportBorn {
		leader = int(last.value)
		last, err = readReport(reports)
	}
	if born := atomic.LoadInt32(&c.leader); born != 0 && sharesMemory {
		leader = int(born)
	}
	switch {
	case leader != pid && (errors.Is(err, errNoReport) || err == nil && last.kind == reportStarted):
		_ = unix.SetNonblock(reports, true)
		return &Process{Pid: leader, Supervisor: pid, PidFD: pidfd(leader), Reports: reports}, nil
	case !c.supervise && errors.Is(err, errNoReport):
		_ = unix.Close(reports)
		return &Process{Pid: pid, PidFD: int(c.pidfd), Reports: -1}, nil
	}
	_ = unix.Close(reports)
	if c.pidfd >= 0 {
		_ = unix.Close(int(c.pidfd))
	}
	Reap(pid)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSetup, err)
	}
	cause := syscall.Errno(last.value)
	switch last.step {
	case stepChdir:
		return nil, fmt.Errorf("%w: %w", ErrDir, cause)
	case stepExec:
		return nil, fmt.Errorf("%w: %w", ErrExec, cause)
	default:
		return nil, fmt.Errorf("%w: step %d: %w", ErrSetup, last.step, cause)
	}
}

func pidfd(pid int) int {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1
	}
	return fd
}

func set(p **byte, s string) (err error) {
	*p, err = unix.BytePtrFromString(s)
	return err
}

func setAll(p *[]*byte, list []string) (err error) {
	*p, err = syscall.SlicePtrFromStrings(list)
	return err
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
