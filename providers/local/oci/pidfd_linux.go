package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// AdoptOrphans makes this process the parent of processes that a runtime leaves
// running when it exits. Process 1 may reap slowly or, in a container, never,
// and a zombie keeps its pid namespace, and so its sandbox, alive.
func AdoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	return nil
}

// watched is a process with a pidfd, so that waiting for it needs no thread.
type watched struct {
	file *os.File // its pidfd
	raw  syscall.RawConn
}

// watch returns nil when there is no such process.
func watch(pid int) (*watched, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return &watched{file: file, raw: raw}, nil
}

func (w *watched) close() { _ = w.file.Close() }

func (w *watched) kill() error {
	var sent error
	err := w.raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	if errors.Is(sent, unix.ESRCH) {
		sent = nil
	}
	return errors.Join(err, sent)
}

// wait returns when the process has exited, and reaps a child.
func (w *watched) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var waitErr error
	err := w.raw.Read(func(fd uintptr) bool {
		var done bool
		done, waitErr = reap(int(fd))
		return done
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(err, waitErr)
}

// reap polls before it waits: for a process that is not a child, a readable
// descriptor is the only sign of its exit.
func reap(pidfd int) (done bool, err error) {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	switch n, err := unix.Poll(fds, 0); {
	case errors.Is(err, unix.EINTR), err == nil && n == 0:
		return false, nil
	case err != nil:
		return true, err
	}
	err = unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED|unix.WNOHANG, nil)
	if errors.Is(err, unix.ECHILD) {
		err = nil
	}
	return true, err
}
