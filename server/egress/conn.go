package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Client is the program's side of a connection.
type Client interface {
	io.ReadWriteCloser
	// CloseWrite ends the direction to the program, which may still send.
	CloseWrite() error
}

// Conn is an allowed connection to an upstream, before and while it is relayed.
type Conn struct {
	dialer   *Dialer
	target   Target
	addr     netip.AddrPort
	upstream *net.TCPConn
	policy   atomic.Pointer[Policy] // for further connections of HTTP
	further  *further
	requests running

	raw atomic.Bool // its bytes pass as they are

	authority func() (*Authority, error) // of Intercept
	secrets   Secrets                    // of Intercept

	rate           *Rate // of Pace
	sent, received atomic.Int64
	began          time.Time
	active         atomic.Int64 // when a byte was carried last, in nanoseconds since began

	cutting sync.Once
	cut     chan struct{} // closed by the first cut
	cause   error         // why, to be read after cut is closed
}

func newConn(d *Dialer, policy *Policy, target Target, upstream *net.TCPConn) *Conn {
	addr := upstream.RemoteAddr().(*net.TCPAddr).AddrPort()
	c := &Conn{
		dialer: d, target: target, upstream: upstream, further: newFurther(), cut: make(chan struct{}),
		addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), began: time.Now(),
	}
	c.policy.Store(policy)
	return c
}

// Addr returns the address that is connected.
func (c *Conn) Addr() netip.AddrPort { return c.addr }

// Apply puts the connection under a newer policy. It returns a *Denied if the
// policy does not allow it or one of its running requests, such as an upgraded one, or
// has no more a secret that it got, or allows only some requests while the connection's
// bytes pass unread; the caller then closes it.
func (c *Conn) Apply(policy *Policy) error {
	if err := policy.CheckAddr(c.target, c.addr.Addr()); err != nil {
		return err
	}
	c.policy.Store(policy)
	if c.raw.Load() && policy.reads(c.target) {
		return c.target.denied(ReasonRequest, "the rules now read its requests; connect again")
	}
	if err := c.further.check(policy, c.target); err != nil {
		return err
	}
	return c.requests.check(policy, c.target)
}

// readsRequests reports whether each request of the connection is checked.
func (c *Conn) readsRequests() bool { return c.policy.Load().reads(c.target) }

// Traffic returns the bytes carried so far, to the upstream and to the program.
// It may be called while Relay runs.
func (c *Conn) Traffic() (sent, received int64) { return c.sent.Load(), c.received.Load() }

// Close resets the connections to the upstream. Relay then closes the client and
// returns an error.
func (c *Conn) Close() error {
	c.abort(net.ErrClosed)
	return nil
}

func (c *Conn) abort(cause error) {
	c.cutting.Do(func() {
		c.cause = cause
		close(c.cut)
		c.further.end() // first, since a request whose connection breaks would open another
		_ = c.upstream.SetLinger(0)
		_ = c.upstream.Close()
	})
}

// Relay checks the first bytes of the program and copies both ways. Each
// direction's end is passed on; Relay returns when both have ended, and has
// closed the upstream then. It is called once.
//
// The error is nil after an orderly end. It is a *Denied if the program's bytes
// are not allowed: the program has then received an answer in its protocol, a
// TLS alert or an HTTP response, and the end of its direction, so that the
// caller ends the client's stream in order. Other errors mean that one side
// broke, was idle for too long, or that ctx has ended: the client is closed, and
// the caller resets its stream.
func (c *Conn) Relay(ctx context.Context, client Client) error {
	stopAtEnd := context.AfterFunc(ctx, func() { c.abort(context.Cause(ctx)) })
	defer stopAtEnd()
	stopIdle := c.watchIdle()
	defer stopIdle()
	finished := make(chan struct{})
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		select {
		case <-c.cut:
			_ = client.Close()
		case <-finished:
		}
	}()
	err := c.relay(client)
	var denied *Denied
	if err != nil && !errors.As(err, &denied) {
		c.abort(err)
	}
	close(finished)
	<-closed
	select {
	case <-c.cut:
		err = c.cause
	default:
	}
	_ = c.upstream.Close()
	return err
}

func (c *Conn) relay(client Client) error {
	if c.target.IsAddr() {
		return c.splice(client, client, c.upstream)
	}
	if c.target.port == 443 || c.target.port == 80 {
		return c.relayStrict(client)
	}
	return c.relayAny(client)
}

// watchIdle aborts the connection when it has carried nothing for the dialer's
// idle time.
func (c *Conn) watchIdle() (stop func()) {
	idle := c.Idle()
	c.touch()
	var timer *time.Timer
	ready := make(chan struct{})
	timer = time.AfterFunc(idle, func() {
		<-ready
		rest := idle - (time.Since(c.began) - time.Duration(c.active.Load()))
		if rest > 0 {
			timer.Reset(rest)
			return
		}
		c.abort(fmt.Errorf("connection to %s carried nothing for %s", c.target, idle))
	})
	close(ready)
	return func() { timer.Stop() }
}

// Idle returns how long the connection may carry nothing before it is ended.
func (c *Conn) Idle() time.Duration { return cmp.Or(c.dialer.Idle, defaultIdle) }

func (c *Conn) firstBytes() time.Duration { return cmp.Or(c.dialer.FirstBytes, defaultFirstBytes) }

func (c *Conn) touch() { c.active.Store(int64(time.Since(c.began))) }
