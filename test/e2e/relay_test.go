package e2e

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// relay forwards connections to a unix socket. After a number of bytes it calls a
// function once, before it forwards the next byte.
type relay struct {
	listener net.Listener
	target   string

	mu   sync.Mutex
	left int
	then func()
}

// relayTo listens in front of a server until the test ends.
func relayTo(t *testing.T, s *server, after int, then func()) *relay {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "r.sock"))
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: l, target: strings.TrimPrefix(s.address, "unix://"), left: after, then: then}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() { r.pass(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		open.Wait()
	})
	return r
}

func (r *relay) address() string { return "unix://" + r.listener.Addr().String() }

// pass joins a connection to a new one; when either ends, both do.
func (r *relay) pass(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	server, err := net.Dial("unix", r.target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{server, conn}, {conn, server}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], io.TeeReader(way[1], r))
			_ = way[0].Close()
			_ = way[1].Close()
		})
	}
	both.Wait()
}

// Write counts the bytes that pass.
func (r *relay) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left > 0 {
		if r.left -= len(p); r.left <= 0 {
			r.then()
		}
	}
	return len(p), nil
}
