package daemon

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ShutAgentConnections shuts down connections between a server that listens on TCP and its
// agents, through duplicates of the server's descriptors: at most a number of them, in one
// or both directions, in the order of shuffle. It returns how many it has shut down.
func ShutAgentConnections(pid, most, how int, shuffle func(n int, swap func(i, j int))) (int, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, fmt.Errorf("open the server's process: %w", err)
	}
	defer func() { _ = unix.Close(pidfd) }()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
	shut := 0
	for _, e := range entries {
		if shut == most {
			break
		}
		target, _ := os.Readlink(dir + "/" + e.Name())
		n, err := strconv.Atoi(e.Name())
		if err != nil || !strings.HasPrefix(target, "socket:") {
			continue
		}
		fd, err := unix.PidfdGetfd(pidfd, n, 0)
		if err != nil {
			continue // It was closed meanwhile.
		}
		if isAgentConnection(fd) && unix.Shutdown(fd, how) == nil {
			shut++
		}
		_ = unix.Close(fd)
	}
	return shut, nil
}

// isAgentConnection reports whether fd is a connected unix socket: those of a server
// that listens on TCP all lead to agents.
func isAgentConnection(fd int) bool {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_UNIX {
		return false
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM {
		return false
	}
	_, err = unix.Getpeername(fd)
	return err == nil
}
