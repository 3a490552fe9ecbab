package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/dial"
	"github.com/sandgate/sandgate/providers/internal/directory"
)

// Open makes a new connection by the sandbox's transport.
func (d driver) Open(ctx context.Context, dir directory.Dir, rec *record) (net.Conn, error) {
	if rec.Transport != TransportExec {
		return dial.Unix(ctx, string(dir), socketName)
	}
	runtime, err := d.p.runtimeOf(rec)
	if err != nil {
		return nil, err
	}
	return runtime.Connect(ctx, rec.Container, bundle(dir).connect())
}

// Connect returns a connection on which the agent has spoken.
func (d driver) Connect(ctx context.Context, dir directory.Dir, rec *record) (net.Conn, error) {
	conn, err := d.Open(ctx, dir, rec)
	if err == nil {
		conn, err = dial.AwaitAgent(ctx, conn)
	}
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, errors.Join(context.Cause(ctx), err)
	default:
		return nil, fmt.Errorf("%w: %w", providers.ErrAgentCannotStart, err)
	}
}

// listenUnix makes a listening socket in a directory. A socket's path is
// limited to 107 bytes, so it goes through the directory's descriptor.
func listenUnix(dir, name string) (*os.File, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name), Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	file, err := l.File()
	return file, errors.Join(err, l.Close())
}
