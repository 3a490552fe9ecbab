package agent

import (
	"context"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/peer"
)

// listener marks connections that broke, because a command whose caller went
// away is treated differently from one whose pipe was cut.
type listener struct{ net.Listener }

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // grpc tells temporary errors apart by type
	}
	return &conn{Conn: c, addr: &addr{Addr: c.RemoteAddr()}}, nil
}

type conn struct {
	net.Conn
	addr *addr
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
