package spawn

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The runtime must be notified of a fork, as package syscall does. These two are on
// the Go linker's list of names that other packages may use.

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

// Kinds of report.
const (
	reportFailed  = 1 // the command could not be started: step, errno
	reportBorn    = 2 // pid: the command is about to be executed
	reportStarted = 3 // it was
	reportExited  = 4 // wait status, usage
	reportExiting = 5 // the same, and no descendant is left: the supervisor exits
)

// Steps at which a start can fail.
const (
	stepCgroup = 1 + iota
	stepSession
	stepDup
	stepTerminal
	stepChdir
	stepExec
	stepFork
	stepConfine
)

// report is what a child writes to its pipe. It is smaller than PIPE_BUF, so writes
// and reads are atomic.
type report struct {
	kind   int64
	step   int64
	value  int64 // errno, pid or wait status
	user   int64 // microseconds
	system int64
	maxRSS int64 // kilobytes
}

const reportLen = int(unsafe.Sizeof(report{}))

// child is the data of a child. It is outside of the Go heap, because a supervisor
// uses it as long as it lives.
type child struct {
	path, dir  *byte
	argv, env  **byte
	fds        [4]int
	pipe       int // where reports go
	bornIn     int // descriptor of the cgroup to start in, or -1
	cgroup     int // descriptor of cgroup.procs to move to, or -1
	ruleset    int // descriptor of the Landlock ruleset to enter, or -1
	terminal   bool
	supervise  bool
	stack      uintptr // of the command below a supervisor, if memory is shared
	command    uintptr // its entry point
	maxFD      int     // highest descriptor to close if close_range is missing
	nofile     unix.Rlimit
	name       [16]byte
	noHandler  [4]uint64 // the kernel's sigaction of SIG_DFL
	noSignals  uint64
	allSignals uint64
	msg        report
	status     int32
	usage      syscall.Rusage
	pid        uintptr
	leader     int32 // pid of the command below a supervisor
	pidfd      int32 // of the child itself, -1 if it is a supervisor
}

// stackLen is enough for the few system calls of a child.
const stackLen = 32 << 10

// childStack is the memory of one child: its data, and the stacks of the child and
// of the command below it.
type childStack struct {
	child  child
	args   cloneArgs
	stacks [2][stackLen]byte
}

// top is the initial stack pointer. By Go's convention the memory above belongs to
// the caller, for arguments.
func top(stack *[stackLen]byte) uintptr {
	return (uintptr(unsafe.Pointer(stack)) + stackLen - 128) &^ 15
}

// entry returns the address of a function's code.
func entry(f func(*child)) uintptr { return **(**uintptr)(unsafe.Pointer(&f)) }

// fork starts the child. Nothing between the two runtime calls may allocate, grow
// the stack or take a lock. The same goes for all code of the child: it may share
// the agent's memory, and it has no goroutine.
//
//go:norace
//go:noinline
func fork(r *childStack) (int, syscall.Errno) {
	c := &r.child
	// A supervisor ends without a signal, because the agent needs none.
	flags, stack := uintptr(0), uintptr(0)
	if sharesMemory {
		flags |= unix.CLONE_VM
		stack, c.stack = top(&r.stacks[0]), top(&r.stacks[1])
	}
	if !c.supervise {
		// The pidfd is made with the child. Later, a short command might have been
		// reaped.
		// Without CLONE_VFORK: whoever can stop the child, or can delay execve, would
		// stop the agent's thread with it, and the garbage collector.
		flags |= uintptr(syscall.SIGCHLD) | unix.CLONE_PIDFD
	}
	begin := entry(childEntry)
	c.command = entry(commandEntry)
	number, pidfd := uintptr(unix.SYS_CLONE), uintptr(unsafe.Pointer(&c.pidfd))
	a1, a2, a3, a4 := flags, stack, pidfd, uintptr(0)
	if c.bornIn >= 0 {
		r.args = cloneArgs{
			flags: uint64(flags&^0xff) | unix.CLONE_INTO_CGROUP | unix.CLONE_CLEAR_SIGHAND, exitSignal: uint64(syscall.SIGCHLD),
			pidfd: uint64(pidfd), cgroup: uint64(c.bornIn),
		}
		if sharesMemory {
			r.args.stack = uint64(uintptr(unsafe.Pointer(&r.stacks[0])))
			r.args.stackSize = uint64(stack) - r.args.stack
		}
		number, a1, a2 = unix.SYS_CLONE3, uintptr(unsafe.Pointer(&r.args)), unsafe.Sizeof(r.args)
		a3, a4 = uintptr(clone3Key[0]), uintptr(clone3Key[1])
	}
	beforeFork()
	pid, errno := clone(number, a1, a2, a3, a4, begin, c)
	if !sharesMemory && errno == 0 && pid == 0 {
		childEntry(c)
	}
	afterFork()
	return int(pid), syscall.Errno(errno)
}

// childEntry is the entry point of the agent's child.
//
//go:norace
//go:nosplit
func childEntry(c *child) {
	if c.supervise {
		supervise(c)
	}
	become(c)
}

// commandEntry is the entry point of a supervisor's child.
//
//go:norace
//go:nosplit
func commandEntry(c *child) {
	// The command may kill its supervisor at once, so it reports its own pid. If
	// memory is shared, clone has stored the pid already.
	if !sharesMemory {
		self, _, _ := syscall.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
		c.msg.kind, c.msg.value = reportBorn, int64(self)
		send(c)
	}
	become(c)
}

// supervise is the whole code of a supervisor: the subreaper above one command.
// Every descendant of the command stays below it, however it detaches, because the
// kernel makes orphans children of the nearest subreaper. The supervisor exits when
// no descendant is left.
//
//go:norace
//go:nosplit
func supervise(c *child) {
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&c.allSignals)), 0, 8, 0, 0)
	syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_CHILD_SUBREAPER, 1, 0)
	syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(unsafe.Pointer(&c.name[0])), 0)
	syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)

	// CLONE_VFORK returns after execve or exit, so the command's reports are in the
	// pipe before the supervisor's.
	flags := uintptr(syscall.SIGCHLD) | unix.CLONE_VFORK | unix.CLONE_PARENT_SETTID
	if sharesMemory {
		flags |= unix.CLONE_VM
	}
	pid, errno := clone(unix.SYS_CLONE, flags, c.stack, uintptr(unsafe.Pointer(&c.leader)), 0, c.command, c)
	if !sharesMemory && errno == 0 && pid == 0 {
		commandEntry(c)
	}
	if errno != 0 {
		fail(c, stepFork, syscall.Errno(errno))
	}
	c.pid = pid
	// Before the start is reported: from then on, a pipe that the command closes must
	// be closed.
	closeAllBut(c)
	c.msg.kind, c.msg.value = reportStarted, int64(pid)
	send(c)
	for {
		got, errno := waitAny(c, 0)
		switch {
		case errno == syscall.EINTR:
		case errno != 0:
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		case got == c.pid:
			c.pid = 0
			c.msg.kind, c.msg.value = reportExited, int64(c.status)
			c.msg.user = c.usage.Utime.Sec*1e6 + int64(c.usage.Utime.Usec)
			c.msg.system = c.usage.Stime.Sec*1e6 + int64(c.usage.Stime.Usec)
			c.msg.maxRSS = c.usage.Maxrss
			// Usually no descendant is left. Reported at once, the agent need not wait
			// for the end of the supervisor.
			if _, errno := waitAny(c, unix.WNOHANG); errno == syscall.ECHILD {
				c.msg.kind = reportExiting
			}
			send(c)
		}
	}
}

// waitAny reaps one child.
//
//go:norace
//go:nosplit
func waitAny(c *child, options uintptr) (pid uintptr, errno syscall.Errno) {
	pid, _, errno = syscall.RawSyscall6(syscall.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(&c.status)), unix.WALL|options, uintptr(unsafe.Pointer(&c.usage)), 0, 0)
	return pid, errno
}

// closeAllBut closes every descriptor of the supervisor but its pipe. Otherwise it
// would hold other commands' pipes open.
//
//go:norace
//go:nosplit
func closeAllBut(c *child) {
	if c.maxFD > 0 {
		for fd := 0; fd <= c.maxFD; fd++ {
			if fd != c.pipe {
				syscall.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
			}
		}
		return
	}
	closeFrom(c, 0)
}

// closeFrom closes every descriptor from first up but the pipe. It needs close_range.
//
//go:norace
//go:nosplit
func closeFrom(c *child, first int) {
	if c.pipe > first {
		syscall.RawSyscall(unix.SYS_CLOSE_RANGE, uintptr(first), uintptr(c.pipe-1), 0)
	}
	syscall.RawSyscall(unix.SYS_CLOSE_RANGE, uintptr(max(first, c.pipe+1)), 1<<31-1, 0)
}

// timerSlack is the kernel's default timer slack, in nanoseconds.
const timerSlack = 50_000

// become turns the forked child into the command.
//
//go:norace
//go:nosplit
func become(c *child) {
	if c.cgroup >= 0 {
		zero := byte('0')
		if _, _, errno := syscall.RawSyscall(unix.SYS_WRITE, uintptr(c.cgroup), uintptr(unsafe.Pointer(&zero)), 1); errno != 0 {
			fail(c, stepCgroup, errno)
		}
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0); errno != 0 {
		fail(c, stepSession, errno)
	}
	if c.ruleset >= 0 {
		// Before dup3, which may replace the ruleset's descriptor.
		syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
		if _, _, errno := syscall.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(c.ruleset), 0, 0); errno != 0 {
			fail(c, stepConfine, errno)
		}
	}
	for i := range len(c.fds) {
		if c.fds[i] < 0 {
			continue
		}
		if _, _, errno := syscall.RawSyscall(unix.SYS_DUP3, uintptr(c.fds[i]), uintptr(i), 0); errno != 0 {
			fail(c, stepDup, errno)
		}
	}
	if c.maxFD == 0 {
		// Close-on-exec would be too late if chdir or execve are held up: the readers
		// of other commands' pipes would wait for their end.
		first := 3
		if c.fds[3] >= 0 {
			first = 4
		}
		closeFrom(c, first)
	}
	if c.terminal {
		if _, _, errno := syscall.RawSyscall(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0); errno != 0 {
			fail(c, stepTerminal, errno)
		}
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(c.dir)), 0, 0); errno != 0 {
		fail(c, stepChdir, errno)
	}
	// The agent may run with coarser timers than a command expects.
	syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, timerSlack, 0)
	syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&c.nofile)), 0, 0, 0)
	// The agent's signal handlers must not run here, so they are reset before signals
	// are unblocked. clone3 has done it with CLONE_CLEAR_SIGHAND.
	for sig := uintptr(1); sig <= 64 && c.bornIn < 0; sig++ {
		syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&c.noHandler)), 0, 8, 0, 0)
	}
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&c.noSignals)), 0, 8, 0, 0)
	_, _, errno := syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(c.path)), uintptr(unsafe.Pointer(c.argv)), uintptr(unsafe.Pointer(c.env)))
	fail(c, stepExec, errno)
}

//go:norace
//go:nosplit
func fail(c *child, step int64, errno syscall.Errno) {
	c.msg.kind, c.msg.step, c.msg.value = reportFailed, step, int64(errno)
	send(c)
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 253, 0, 0)
	}
}

//go:norace
//go:nosplit
func send(c *child) {
	syscall.RawSyscall(unix.SYS_WRITE, uintptr(c.pipe), uintptr(unsafe.Pointer(&c.msg)), uintptr(reportLen))
}
