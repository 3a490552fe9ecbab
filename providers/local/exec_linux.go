package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// execConnect has the runtime start "sandgate-agent connect" in the sandbox with
// one end of a socket pair as standard input and output. The runtime itself goes
// away at once, so nobody stands between the two ends to copy.
func execConnect(ctx context.Context, runtime *engine, container string, b bundle) (net.Conn, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer func() { _ = theirs.Close() }()
	conn, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return nil, err
	}
	proc, err := execDetached(ctx, runtime, container, b, theirs)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return newExecConn(context.WithoutCancel(ctx), conn.(*net.UnixConn), proc), nil
}

// execDetached is not go-runc's Exec, which would leave a file with the process'
// description in a directory that everybody may list for as long as it runs.
func execDetached(ctx context.Context, runtime *engine, container string, b bundle, stdio *os.File) (*watched, error) {
	pidFile, err := os.CreateTemp(string(b), ".connect-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(pidFile.Name()) }()
	_ = pidFile.Close()
	complaints, err := newNote()
	if err != nil {
		return nil, err
	}
	defer complaints.close()
	hurry := ctx
	ctx, cancel := unhurried(ctx)
	defer cancel()
	cmd := runtime.command(ctx, "exec", "--detach", "--process", b.connect(), "--pid-file", pidFile.Name(), container)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdio, stdio, complaints.file
	runErr := cmd.Run()
	pid, err := readPID(pidFile.Name())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s exec: %w: %s", runtime.name, runErr, complaints.text()), err)
	}
	proc, err := watch(pid)
	if err == nil && proc == nil {
		err = errors.New("the agent's connect ended at once")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, complaints.text())
	}
	if runErr == nil && hurry.Err() != nil {
		runErr = context.Cause(hurry)
	}
	if runErr != nil {
		err = fmt.Errorf("%s exec: %w: %s", runtime.name, runErr, complaints.text())
		err = errors.Join(err, proc.kill(), proc.wait(context.WithoutCancel(ctx)))
		proc.close()
		return nil, err
	}
	return proc, nil
}

func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs"), nil
}

// execConn is a connection through a process in the sandbox.
type execConn struct {
	*net.UnixConn
	proc  *watched
	ended chan struct{} // closed when the process was reaped
	once  sync.Once
	err   error
}

var (
	_ net.Conn     = (*execConn)(nil)
	_ syscall.Conn = (*execConn)(nil)
)

// newExecConn reaps the process as soon as it ends: until then its sandbox
// cannot be deleted.
func newExecConn(ctx context.Context, conn *net.UnixConn, proc *watched) *execConn {
	c := &execConn{UnixConn: conn, proc: proc, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		_ = proc.wait(ctx)
	}()
	return c
}

// Close ends the process too and returns when it is gone.
func (c *execConn) Close() error {
	c.once.Do(func() {
		c.err = errors.Join(c.UnixConn.Close(), c.proc.kill())
		<-c.ended
		c.proc.close()
	})
	return c.err
}
