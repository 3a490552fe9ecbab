package oci

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Connect starts a process in a container with one end of a socket pair as standard
// input and output, and returns the other end. The process is described by the JSON
// file at path process. The runtime exits at once, so no process copies between the
// two ends.
func (r *Runtime) Connect(ctx context.Context, container, process string) (net.Conn, error) {
	server, agent, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer func() { _ = agent.Close() }()
	conn, err := net.FileConn(server)
	_ = server.Close()
	if err != nil {
		return nil, err
	}
	proc, err := r.execDetached(ctx, container, process, agent)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return newExecConn(context.WithoutCancel(ctx), conn.(*net.UnixConn), proc), nil
}

// execDetached replaces go-runc's Exec, which keeps the process's description
// in a directory that every user can list while the process runs.
func (r *Runtime) execDetached(ctx context.Context, container, process string, stdio *os.File) (*watched, error) {
	pidFile, err := os.CreateTemp(filepath.Dir(process), ".connect-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(pidFile.Name()) }()
	_ = pidFile.Close()
	out, err := NewOutput()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	caller := ctx
	ctx, cancel := uninterrupted(ctx)
	defer cancel()
	cmd := r.command(ctx, "exec", "--detach", "--process", process, "--pid-file", pidFile.Name(), container)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdio, stdio, out.file
	runErr := cmd.Run()
	pid, err := ReadPID(pidFile.Name())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s exec: %w: %s", r.Name, runErr, out.Text()), err)
	}
	proc, err := watch(pid)
	if err == nil && proc == nil {
		err = errors.New("the agent's connect exited immediately")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out.Text())
	}
	if runErr == nil && caller.Err() != nil {
		runErr = context.Cause(caller)
	}
	if runErr != nil {
		err = fmt.Errorf("%s exec: %w: %s", r.Name, runErr, out.Text())
		err = errors.Join(err, proc.kill(), proc.wait(context.WithoutCancel(ctx)))
		proc.close()
		return nil, err
	}
	return proc, nil
}

func socketPair() (server, agent *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "server"), os.NewFile(uintptr(fds[1]), "agent"), nil
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

// newExecConn reaps the process as soon as it exits: until then its sandbox
// cannot be deleted.
func newExecConn(ctx context.Context, conn *net.UnixConn, proc *watched) *execConn {
	c := &execConn{UnixConn: conn, proc: proc, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		_ = proc.wait(ctx)
	}()
	return c
}

// Close also kills the process, and returns when it has exited.
func (c *execConn) Close() error {
	c.once.Do(func() {
		c.err = errors.Join(c.UnixConn.Close(), c.proc.kill())
		<-c.ended
		c.proc.close()
	})
	return c.err
}
