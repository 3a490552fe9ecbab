package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cutInner shuts down every connection between a server that listens on TCP and its
// agents, through duplicates of the server's descriptors. It returns their number.
func (s *server) cutInner(context.Context) (int, error) {
	pid := s.Process.Pid
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
	cut := 0
	for _, e := range entries {
		target, _ := os.Readlink(dir + "/" + e.Name())
		n, err := strconv.Atoi(e.Name())
		if err != nil || !strings.HasPrefix(target, "socket:") {
			continue
		}
		fd, err := unix.PidfdGetfd(pidfd, n, 0)
		if err != nil {
			continue // It was closed meanwhile.
		}
		if toAgent(fd) && unix.Shutdown(fd, unix.SHUT_RDWR) == nil {
			cut++
		}
		_ = unix.Close(fd)
	}
	return cut, nil
}

// toAgent reports whether fd is a connected unix stream socket: those of a server
// that listens on TCP all lead to agents.
func toAgent(fd int) bool {
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
