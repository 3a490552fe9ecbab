package egress

import (
	"context"
	"io"
	"net"
	"sync"
)

// maxUpstreams bounds the connections to the upstream that the requests of one
// connection of a program open.
const maxUpstreams = 16

// further are the connections to the upstream beyond that of Open, and those that
// are being opened.
type further struct {
	ctx    context.Context //nolint:containedctx // of the dials, which go on when a request has ended
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	conns map[*upstreamConn]struct{}
}

func newFurther() *further {
	f := &further{conns: make(map[*upstreamConn]struct{})}
	f.ctx, f.cancel = context.WithCancelCause(context.Background())
	return f
}

// dialFurther connects under the present policy, unless the Conn has ended.
func (c *Conn) dialFurther(ctx context.Context) (net.Conn, error) {
	if c.further.ctx.Err() != nil { // AfterFunc would come late.
		return nil, net.ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(c.further.ctx, func() { cancel(net.ErrClosed) })
	defer stop()
	upstream, err := c.dialer.dial(ctx, c.policy.Load(), c.target)
	if err != nil {
		return nil, err
	}
	again := newUpstreamConn(c, upstream, upstream)
	if !c.further.add(again) {
		_ = upstream.Close()
		return nil, net.ErrClosed
	}
	if err := again.check(c.policy.Load(), c.target); err != nil { // It may be newer.
		_ = again.Close()
		return nil, err
	}
	return again, nil
}

// check returns a *Denied if the policy does not allow one of the addresses.
func (f *further) check(policy *Policy, target Target) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.conns {
		if err := conn.check(policy, target); err != nil {
			return err
		}
	}
	return nil
}

func (u *upstreamConn) check(policy *Policy, target Target) error {
	return policy.CheckAddr(target, u.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap())
}

// add reports false after end.
func (f *further) add(conn *upstreamConn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		return false
	}
	f.conns[conn] = struct{}{}
	return true
}

func (f *further) remove(conn *upstreamConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, conn)
}

// end resets the connections. There are no new ones after it.
func (f *further) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancel(net.ErrClosed)
	for conn := range f.conns {
		_ = conn.SetLinger(0)
		_ = conn.TCPConn.Close()
	}
	clear(f.conns)
}

// upstreamConn counts what it carries, and reads from what its connection has
// sent already.
type upstreamConn struct {
	*net.TCPConn
	conn *Conn
	from io.Reader

	ending sync.Once
	ended  chan struct{} // closed by Close
}

func newUpstreamConn(c *Conn, upstream *net.TCPConn, from io.Reader) *upstreamConn {
	return &upstreamConn{TCPConn: upstream, conn: c, from: from, ended: make(chan struct{})}
}

func (u *upstreamConn) Read(p []byte) (int, error) {
	n, err := u.from.Read(p)
	u.conn.received.Add(int64(n))
	u.conn.touch()
	if cut := u.conn.await(n, u.ended); cut != nil {
		return n, cut
	}
	return n, err
}

func (u *upstreamConn) Write(p []byte) (int, error) {
	if err := u.conn.await(len(p), u.ended); err != nil {
		return 0, err
	}
	n, err := u.TCPConn.Write(p)
	u.conn.sent.Add(int64(n))
	u.conn.touch()
	return n, err
}

// ReadFrom hides that of TCPConn, which would not count.
func (u *upstreamConn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{u}, r)
}

// WriteTo hides that of TCPConn.
func (u *upstreamConn) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{u})
}

// Close closes the connection, which then does not count any more.
func (u *upstreamConn) Close() error {
	u.ending.Do(func() { close(u.ended) })
	u.conn.further.remove(u)
	return u.TCPConn.Close()
}
