package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/oci"
)

// Dial connects to the agent inside.
func (p *Provider) Dial(ctx context.Context, name string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("dial %s: %w", name, context.Cause(ctx))
	}
	b := p.layout.Sandbox(name)
	rec, err := readRecord(b)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", name, err)
	}
	if info := p.info(name, rec); info.State != providers.StateActive {
		return nil, providers.NotActive(info, "dial %s: it is %s", name, info.Status())
	}
	conn, err := p.open(ctx, bundle(b), rec)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", name, err)
	}
	return conn, nil
}

// open makes a new connection by the sandbox's transport.
func (p *Provider) open(ctx context.Context, b bundle, rec *record) (net.Conn, error) {
	var conn net.Conn
	var err error
	if rec.Transport == TransportExec {
		var runtime *oci.Runtime
		if runtime, err = p.runtimeOf(rec); err == nil {
			conn, err = runtime.Connect(ctx, rec.Container, b.connect())
		}
	} else {
		conn, err = dialUnix(ctx, string(b), socketName)
	}
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, errors.Join(context.Cause(ctx), err)
	default:
		return nil, fmt.Errorf("%w: %w", providers.ErrUnavailable, err)
	}
}

// connect returns a connection on which the agent has spoken. A gRPC server
// speaks first, so nothing needs to be sent, and its bytes stay unread.
func (p *Provider) connect(ctx context.Context, b bundle, rec *record) (net.Conn, error) {
	conn, err := p.open(ctx, b, rec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", providers.ErrAgentCannotStart, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	err = awaitByte(conn)
	if !stop() {
		err = context.Cause(ctx)
	} else if err != nil {
		err = fmt.Errorf("%w: %w", providers.ErrAgentCannotStart, err)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// awaitByte waits until there is something to read and does not read it.
func awaitByte(conn net.Conn) error {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return fmt.Errorf("cannot wait for a %T", conn)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var readErr error
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, readErr = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return !errors.Is(readErr, unix.EAGAIN) && !errors.Is(readErr, unix.EINTR)
	})
	switch {
	case err != nil:
		return err
	case readErr != nil:
		return readErr
	case n == 0:
		return fmt.Errorf("the agent closed the connection: %w", io.ErrUnexpectedEOF)
	}
	return nil
}

// listenUnix makes a listening socket in a directory. A socket's path is
// limited to 107 bytes, so it goes through the directory's descriptor.
func listenUnix(dir, name string) (*os.File, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: throughFD(d, name), Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	file, err := l.File()
	return file, errors.Join(err, l.Close())
}

func dialUnix(ctx context.Context, dir, name string) (net.Conn, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", throughFD(d, name))
}

func throughFD(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}
