package dial

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

var errNotASocket = errors.New("what is at the agent's address is not a socket")

// Unix connects to a socket in a directory that a sandbox may be able to write to. It
// follows no link: that could lead to any socket of this machine. The path may be longer
// than an address of a socket.
func Unix(ctx context.Context, dir, name string) (net.Conn, error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	defer func() { _ = unix.Close(d) }()
	s, err := unix.Openat(d, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the agent's socket: %w", err)
	}
	defer func() { _ = unix.Close(s) }()
	var stat unix.Stat_t
	if err := unix.Fstat(s, &stat); err != nil {
		return nil, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, errNotASocket
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", s))
}
