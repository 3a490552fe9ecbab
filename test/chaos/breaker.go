//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// breaker breaks the connections between the server and the agents at moments that the
// seed chooses. It shuts down the server's sockets through duplicates of their
// descriptors; with the transport "exec" it also kills the connect process in the
// sandbox.
type breaker struct {
	h      *host
	chance *rand.Rand
	mean   time.Duration
}

func (b *breaker) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(b.chance.ExpFloat64() * float64(b.mean))):
		}
		var n int
		if b.h.transport == "exec" && b.chance.IntN(2) == 0 {
			n = b.killConnect()
		} else {
			n = b.shutSocket()
		}
		b.h.tally.hop2.Add(int64(n))
	}
}

// killConnect kills one connect process and returns the number killed.
func (b *breaker) killConnect() int {
	var found []int
	for _, p := range b.h.uses.Processes() {
		if p.Connect {
			found = append(found, p.ID)
		}
	}
	if len(found) == 0 {
		return 0
	}
	if unix.Kill(found[b.chance.IntN(len(found))], unix.SIGKILL) != nil {
		return 0
	}
	return 1
}

// shutSocket shuts down one of the server's sockets to an agent, in one or both
// directions, and returns the number shut down.
func (b *breaker) shutSocket() int {
	pid := b.h.pid()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0 // It is being restarted.
	}
	defer func() { _ = unix.Close(pidfd) }()
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	b.chance.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
	how := []int{unix.SHUT_RDWR, unix.SHUT_RDWR, unix.SHUT_RD, unix.SHUT_WR}[b.chance.IntN(4)]
	for _, e := range entries {
		target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
		n, err := strconv.Atoi(e.Name())
		if err != nil || !strings.HasPrefix(target, "socket:") {
			continue
		}
		fd, err := unix.PidfdGetfd(pidfd, n, 0)
		if err != nil {
			continue
		}
		shut := isAgentConnection(fd) && unix.Shutdown(fd, how) == nil
		_ = unix.Close(fd)
		if shut {
			return 1
		}
	}
	return 0
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
