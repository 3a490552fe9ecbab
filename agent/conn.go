package agent

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"
)

// listener marks connections that broke, because a command whose caller went
// away is treated differently from one whose pipe was cut.
type listener struct {
	net.Listener
	strangers *strangers
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // grpc tells temporary errors apart by type
	}
	mine := &conn{Conn: c, addr: &addr{Addr: c.RemoteAddr()}, strangers: l.strangers}
	l.strangers.enter(mine)
	return mine, nil
}

type conn struct {
	net.Conn
	addr      *addr
	strangers *strangers
}

// SetDeadline: gRPC gives a new connection a deadline to say what it wants, and
// takes that away when it has.
func (c *conn) SetDeadline(at time.Time) error {
	if at.IsZero() {
		c.strangers.leave(c)
	}
	return c.Conn.SetDeadline(at) //nolint:wrapcheck // a net.Conn returns its errors bare
}

func (c *conn) Close() error {
	c.strangers.leave(c)
	return c.Conn.Close() //nolint:wrapcheck // a net.Conn returns its errors bare
}

// strangers are the connections that have not said what they want. gRPC waits
// for them when it stops, also when it is to stop at once.
type strangers struct {
	mu   sync.Mutex
	all  map[*conn]struct{}
	shut bool
}

func (s *strangers) enter(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		_ = c.Conn.Close()
		return
	}
	if s.all == nil {
		s.all = make(map[*conn]struct{})
	}
	s.all[c] = struct{}{}
}

func (s *strangers) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, c)
}

// hangUp closes them, and those that still come.
func (s *strangers) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = true
	for c := range s.all {
		_ = c.Conn.Close()
	}
}

// addr is the peer's address as gRPC sees it; it carries the mark.
type addr struct {
	net.Addr
	broken atomic.Bool
}

func (c *conn) RemoteAddr() net.Addr { return c.addr }

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.addr.broken.Store(true)
	}
	return n, err //nolint:wrapcheck // a net.Conn returns its errors bare
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		c.addr.broken.Store(true)
	}
	return n, err //nolint:wrapcheck // a net.Conn returns its errors bare
}

// pipeBroke reports whether the connection of a call is gone, rather than only
// the call cancelled.
func pipeBroke(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	a, ok := p.Addr.(*addr)
	return ok && a.broken.Load()
}
