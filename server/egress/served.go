package egress

import (
	"net"
	"net/http"
	"sync"
)

// servedConn is the connection that net/http serves for one program: one end of
// a pipe. net/http cancels a request when its connection ends while it runs. A
// program that ends its direction still waits for the answer, so the pipe is
// closed only when the server waits for another request.
type servedConn struct {
	net.Conn // far, the server's end
	near     net.Conn
	once     sync.Once
	closed   chan struct{}

	mu      sync.Mutex
	state   http.ConnState
	ended   bool // the program sends no more
	reading bool // the server reads after that
}

func newServedConn(near, far net.Conn) *servedConn {
	return &servedConn{Conn: far, near: near, closed: make(chan struct{})}
}

// Read returns what the program sends. The end of its direction comes as a write
// of no bytes, so that it cannot overtake them.
func (c *servedConn) Read(p []byte) (int, error) {
	if !c.hasEnded() {
		n, err := c.Conn.Read(p)
		if n > 0 || err != nil {
			return n, err
		}
	}
	c.change(func() { c.ended, c.reading = true, true })
	defer c.change(func() { c.reading = false })
	return c.Conn.Read(p)
}

func (c *servedConn) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

func (c *servedConn) setState(state http.ConnState) {
	c.change(func() { c.state = state })
}

// noMoreRequests is called when the program has ended its direction.
func (c *servedConn) noMoreRequests() { _, _ = c.near.Write(nil) }

// change applies a change, and closes the pipe if the server waits for a request
// that will not come.
func (c *servedConn) change(apply func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	apply()
	if c.reading && c.state != http.StateActive {
		_ = c.near.Close()
	}
}

// Close ends the listener, too.
func (c *servedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *servedConn) RemoteAddr() net.Addr { return pipeAddr{} }

// listener returns a listener that accepts the connection, and ends with it.
func (c *servedConn) listener() net.Listener {
	l := &oneListener{conn: make(chan net.Conn, 1), closed: c.closed}
	l.conn <- c
	return l
}

type oneListener struct {
	conn   chan net.Conn
	closed <-chan struct{}
}

func (l *oneListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conn:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *oneListener) Close() error   { return nil }
func (l *oneListener) Addr() net.Addr { return pipeAddr{} }
