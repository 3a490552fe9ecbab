package spawn

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// birth is a child between fork and execve. It uses the memory and the strings.
type birth struct {
	child   *child
	pid     int // of the agent's child
	leader  int // of the command: the same, or below a supervisor
	memory  []byte
	strings arguments
	// pipe is the descriptor of reports. Whoever uses the memory has the writing end:
	// the child and the command below it, each until execve or its end.
	pipe    int
	reports *os.File
}

// await waits until the child has executed the command or failed. Meanwhile it holds
// no thread, however long that takes.
func (b *birth) await(timeout time.Duration) (*Process, error) {
	b.reports = os.NewFile(uintptr(b.pipe), "reports")
	if err := b.reports.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		b.discard(0)
		return nil, fmt.Errorf("%w: %w", ErrSetup, err)
	}
	c := b.child
	last, err := readReport(b.reports.Read)
	if err == nil && last.kind == reportBorn {
		b.leader = int(last.value)
		last, err = readReport(b.reports.Read)
	}
	if born := atomic.LoadInt32(&c.leader); born != 0 && sharesMemory {
		b.leader = int(born)
	}
	executed := errors.Is(err, errNoReport)
	switch {
	case b.leader != b.pid && (executed || err == nil && last.kind == reportStarted):
		// A descriptor of its own: the file belongs to the runtime's poller.
		own, err := unix.FcntlInt(uintptr(b.pipe), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			b.discard(0)
			return nil, fmt.Errorf("%w: %w", ErrSetup, err)
		}
		_ = b.reports.Close()
		runtime.KeepAlive(&b.strings)
		return &Process{Pid: b.leader, Supervisor: b.pid, PidFD: pidfd(b.leader), Reports: own, memory: b.memory}, nil
	case !c.supervise && executed:
		p := &Process{Pid: b.pid, PidFD: int(c.pidfd), Reports: -1}
		_ = b.reports.Close()
		runtime.KeepAlive(&b.strings)
		putStack(b.memory)
		return p, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.discard(0)
		return nil, fmt.Errorf("%w: %w: more than %v", ErrExec, ErrTimeout, timeout)
	case executed: // the supervisor was killed before it started the command
		b.discard(exitTime)
		return nil, fmt.Errorf("%w: %w", ErrSetup, ErrSupervisorLost)
	case err != nil:
		b.discard(0)
		return nil, fmt.Errorf("%w: %w", ErrSetup, err)
	}
	b.discard(exitTime)
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

// exitTime is how long a child that has failed may take to exit before it is killed.
const exitTime = time.Second

// discard ends a failed start. It kills a child that does not exit by itself in the
// given time. One that the kernel can't end at once, as in a system call on a file
// system that does not answer, keeps its memory until then.
func (b *birth) discard(exit time.Duration) {
	fd := int(b.child.pidfd)
	if b.child.supervise {
		fd = pidfd(b.pid)
	}
	_ = b.reports.SetReadDeadline(time.Time{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = b.reports.Close() }()
		switch {
		case fd < 0:
			b.discardByPid(exit)
		case exit > 0 && waitExit(fd, exit) && b.left(b.readNow), b.kill(fd):
			b.free(fd)
		}
	}()
	select {
	case <-done:
	case <-time.After(exit + exitTime):
	}
}

// discardByPid is discard where no pidfd can be opened. It can't tell when a command
// has ended that was killed, so it frees nothing then.
func (b *birth) discardByPid(exit time.Duration) {
	if exit == 0 {
		if pid := b.leaderPid(); pid != 0 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		_ = unix.Kill(b.pid, unix.SIGKILL)
	}
	Reap(b.pid)
	if exit > 0 && b.left(b.readNow) {
		putStack(b.memory)
	}
	runtime.KeepAlive(&b.strings)
}

// kill ends the child and the command below it, however long the kernel takes. It
// returns false if it can't tell when they are gone.
func (b *birth) kill(fd int) bool {
	if !b.child.supervise {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		return waitExit(fd, 0)
	}
	leader := -1
	if pid := b.leaderPid(); pid != 0 && parentOf(pid) == b.pid {
		leader = pidfd(pid)
	}
	// The supervisor makes no system call that others could hold up.
	_ = unix.Kill(b.pid, unix.SIGKILL)
	if !waitExit(fd, 0) {
		return false
	}
	// The command may have been started in the meantime, or another program has ended
	// the supervisor before. If it has not executed yet, the pid is its own.
	if leader < 0 && !b.left(b.readNow) {
		if pid := b.leaderPid(); pid != 0 {
			leader = pidfd(pid)
		}
	}
	if leader >= 0 {
		_ = unix.PidfdSendSignal(leader, unix.SIGKILL, nil, 0)
		_ = unix.Close(leader)
	}
	return b.left(b.reports.Read)
}

// left reports whether nobody uses the memory any more, as far as read tells: at once,
// or after a wait.
func (b *birth) left(read func([]byte) (int, error)) bool {
	for {
		r, err := readReport(read)
		switch {
		case errors.Is(err, errNoReport):
			return true
		case err != nil:
			return false
		case r.kind == reportBorn:
			b.leader = int(r.value)
		}
	}
}

// readNow reads from the pipe without waiting.
func (b *birth) readNow(p []byte) (int, error) { return unix.Read(b.pipe, p) }

// free reaps the child, which has exited, and frees its memory.
func (b *birth) free(fd int) {
	if b.child.supervise {
		Reap(b.pid)
	} else {
		// By its descriptor: someone else may have reaped it.
		_ = unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil)
	}
	_ = unix.Close(fd)
	putStack(b.memory)
	runtime.KeepAlive(&b.strings)
}

// leaderPid returns the pid of the command below the supervisor, 0 if it is not known.
func (b *birth) leaderPid() int {
	switch {
	case sharesMemory:
		return int(atomic.LoadInt32(&b.child.leader))
	case b.leader != b.pid:
		return b.leader
	}
	return 0
}

// parentOf returns 0 if there is no such process.
func parentOf(pid int) int {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The name in parentheses may contain parentheses; the last one ends it.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(string(fields[1]))
	return parent
}

// waitExit waits until a process exits, without a limit if timeout is 0. It holds no
// thread. It returns false if the time is over or the wait fails.
func waitExit(fd int, timeout time.Duration) bool {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return false
	}
	_ = unix.SetNonblock(own, true)
	file := os.NewFile(uintptr(own), "pidfd")
	defer func() { _ = file.Close() }()
	if timeout > 0 && file.SetReadDeadline(time.Now().Add(timeout)) != nil {
		return false
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return false
	}
	return raw.Read(func(fd uintptr) bool {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0
	}) == nil
}
