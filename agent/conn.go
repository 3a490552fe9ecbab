package agent

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"
)

// listener marks broken connections, because the grace period of a command is
// longer after a broken connection than after a cancelled call.
type listener struct {
	net.Listener
	pending *pendingConns
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // gRPC recognises temporary errors by type
	}
	marked := &conn{Conn: c, addr: &addr{Addr: c.RemoteAddr()}, pending: l.pending}
	l.pending.add(marked)
	return marked, nil
}

type conn struct {
	net.Conn
	addr    *addr
	pending *pendingConns
}

// SetDeadline is called by gRPC: with a deadline for the handshake of a new
// connection, and with zero after it.
func (c *conn) SetDeadline(at time.Time) error {
	if at.IsZero() {
		c.pending.remove(c)
	}
	return c.Conn.SetDeadline(at) //nolint:wrapcheck // a net.Conn returns errors unwrapped
}

func (c *conn) Close() error {
	c.pending.remove(c)
	return c.Conn.Close() //nolint:wrapcheck // a net.Conn returns errors unwrapped
}

// pendingConns are the connections whose handshake is not complete. gRPC waits for
// them when it stops, even in Stop.
type pendingConns struct {
	mu     sync.Mutex
	all    map[*conn]struct{}
	closed bool
}

func (s *pendingConns) add(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Conn.Close()
		return
	}
	if s.all == nil {
		s.all = make(map[*conn]struct{})
	}
	s.all[c] = struct{}{}
}

func (s *pendingConns) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, c)
}

// close closes them and all later ones.
func (s *pendingConns) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.all {
		_ = c.Conn.Close()
	}
}

// addr is the peer's address in gRPC's contexts. It carries the mark.
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
	return n, err //nolint:wrapcheck // a net.Conn returns errors unwrapped
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		c.addr.broken.Store(true)
	}
	return n, err //nolint:wrapcheck // a net.Conn returns errors unwrapped
}

// disconnected reports whether the connection of a call is broken, rather than
// only the call cancelled.
func disconnected(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	a, ok := p.Addr.(*addr)
	return ok && a.broken.Load()
}
