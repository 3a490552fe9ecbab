// Package listen opens listeners on TCP and on unix sockets that only their owner can
// use.
package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Open returns a listener for "HOST:PORT" or "unix:///path". Only its owner can
// use a unix socket (mode 0600). Open replaces the socket of a dead server.
func Open(ctx context.Context, address string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		var lc net.ListenConfig
		return lc.Listen(ctx, "tcp", address)
	}
	path = strings.TrimPrefix(path, "//")
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("listen %s: the socket's path must be absolute, as in unix:///run/sandgate.sock", address)
	}
	return listenUnix(ctx, path)
}

// listenUnix binds in a private directory and renames, so that the socket is
// never open to others.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".sg")
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer os.RemoveAll(dir)
	private := filepath.Join(dir, "s")
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", private)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(private, 0o600), os.Rename(private, path)); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), l.Close())
	}
	return &unixListener{Listener: l, path: path}, nil
}

type unixListener struct {
	net.Listener
	path string
	once sync.Once
	err  error
}

func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close removes the socket once. By the second call another server may own the
// path.
func (l *unixListener) Close() error {
	l.once.Do(func() {
		l.err = l.Listener.Close()
		if err := os.Remove(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.err = errors.Join(l.err, err)
		}
	})
	return l.err
}

func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("listen on %s: there is something else than a socket", path)
	}
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("listen on %s: another server listens there", path), conn.Close())
	}
	if !refused(err) {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	return os.Remove(path)
}

// Reachable reports whether other machines can connect.
func Reachable(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && !tcp.IP.IsLoopback()
}
