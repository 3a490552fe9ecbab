package admission

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/limit"
	"github.com/sandgate/sandgate/server/quota"
)

// Bounds of pending connections: those on which no call has been authenticated
// yet.
const (
	// pendingTime is how long a connection may be pending. A connection that
	// serves health checks alone is closed then, and its client opens another.
	pendingTime = 30 * time.Second
	// pendingBytes is what a pending connection may send: as much as a client
	// with wrong credentials has sent before the answer arrives.
	pendingBytes = 8 << 20
	// healthBytes is what it may send after its first health call, since messages
	// of health calls are read.
	healthBytes = 64 << 10
	// pendingCallLimit bounds its refused and health calls. Later it bounds
	// refused calls in a row: credentials may be revoked.
	pendingCallLimit = 256
	// Beyond refusedCalls in a row the connection is read only every refusedPause, so that a
	// caller who goes on with wrong credentials does not keep the processors busy.
	refusedCalls = 16
	refusedPause = 20 * time.Millisecond
	// pendingConns and pendingConnsPerHost bound the pending connections, as
	// [limit.Pending] does.
	pendingConns        = 1_024
	pendingConnsPerHost = 256
	// lingerTime is how long at least a connection is open whose place another takes, and
	// lingerSpread how much longer at most, at random: a client that comes back whenever it
	// is closed makes one in that time, and many such clients do not come back together.
	lingerTime   = time.Second
	lingerSpread = time.Second
	// lingeringConns bounds the connections that are open only for that. They take a
	// descriptor, and no memory of gRPC: at most one in lingeringPart of all descriptors.
	lingeringConns = 4_096
	lingeringPart  = 4
)

// connLimiter bounds the connections on which no call has been authenticated.
type connLimiter struct {
	pending   *limit.Pending
	lingering limit.Slots
}

func newConnLimiter() *connLimiter {
	return &connLimiter{
		pending:   limit.NewPending(pendingConns, pendingConnsPerHost),
		lingering: limit.New(int(min(lingeringConns, descriptors()/lingeringPart))),
	}
}

// listener returns l with its connections counted.
func (cl *connLimiter) listener(l net.Listener) net.Listener {
	return &limitedListener{Listener: l, limiter: cl}
}

type limitedListener struct {
	net.Listener
	limiter *connLimiter
}

func (l *limitedListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.limiter.track(raw), nil
}

// clientConn is a client's connection, pending at first.
type clientConn struct {
	net.Conn
	limiter *connLimiter
	entry   limit.Entry
	begun   time.Time
	late    *time.Timer // closes it when it was pending or lingered for too long
	// left is what may still be read. A negative value ends the connection.
	left     atomic.Int64
	received quota.Received
	free     atomic.Bool // not pending any more
	tenant   string      // of the first call with credentials; set before free
	// calls counts the calls since the last one with credentials. Health calls
	// count while the connection is pending.
	calls  atomic.Int32
	health pendingCalls

	// lingers is true from when another connection takes its place until it is closed.
	lingers atomic.Bool

	mu     sync.Mutex // also held to set lingers
	closed bool
	// leave gives back the place among the connections of authenticated callers; nil:
	// it has none.
	leave func()
}

func (cl *connLimiter) track(raw net.Conn) *clientConn {
	c := &clientConn{Conn: raw, limiter: cl, begun: time.Now()}
	c.left.Store(pendingBytes)
	c.late = time.AfterFunc(pendingTime, c.expire)
	cl.pending.Add(&c.entry, raw.RemoteAddr(), c.makeWay)
	return c
}

// expire closes the connection at the end of its time.
func (c *clientConn) expire() {
	c.limiter.pending.Remove(&c.entry)
	if c.lingers.Swap(false) {
		c.limiter.lingering.Release()
	}
	_ = c.Conn.Close()
}

// makeWay ends the connection, for another's sake or because it made too many calls. A
// new one lingers: whoever serves it stops, and its client learns of that later.
func (c *clientConn) makeWay() {
	c.limiter.pending.Remove(&c.entry)
	c.mu.Lock()
	rest := lingerTime - time.Since(c.begun)
	if rest <= 0 || c.closed || c.lingers.Load() || c.free.Load() || !c.limiter.lingering.TryAcquire() {
		c.mu.Unlock()
		_ = c.Close()
		return
	}
	c.lingers.Store(true)
	c.late.Reset(rest + rand.N(lingerSpread))
	c.mu.Unlock()
	_ = c.SetReadDeadline(longAgo) // what waits for a read
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// ended ends the time and the place of a pending connection.
func (c *clientConn) ended() {
	c.late.Stop()
	c.limiter.pending.Remove(&c.entry)
}

func (c *clientConn) Read(p []byte) (int, error) {
	if pause := c.received.Pause(); pause > 0 {
		time.Sleep(pause)
	}
	if c.calls.Load() > refusedCalls {
		time.Sleep(refusedPause)
	}
	if c.lingers.Load() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(p)
	c.received.Add(n)
	if !c.free.Load() && c.left.Add(-int64(n)) < 0 {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *clientConn) Close() error {
	c.mu.Lock()
	leave, lingers := c.leave, c.lingers.Load()
	c.closed, c.leave = true, nil
	if !lingers {
		c.ended()
	}
	c.mu.Unlock()
	if lingers {
		return nil // expire closes it
	}
	if leave != nil {
		leave()
	}
	return c.Conn.Close()
}

// RemoteAddr returns the peer's address, by which connOf finds the connection.
func (c *clientConn) RemoteAddr() net.Addr { return connAddr{Addr: c.Conn.RemoteAddr(), conn: c} }

// authenticated lifts the bounds of a pending connection and restarts the count
// of refused calls. The connection takes a place of the tenant of its first call until it
// is closed. Without a free one it returns an error, and the connection stays pending. If
// places is nil, nothing bounds their number.
func (c *clientConn) authenticated(tenant string, places *limit.Shared) error {
	if c == nil {
		return nil
	}
	if c.calls.Load() != 0 {
		c.calls.Store(0)
	}
	if c.free.Load() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.free.Load() || c.closed || c.lingers.Load() {
		return nil
	}
	if places != nil {
		if !places.TryTake(tenant) {
			return fault.New(sandboxv1.ErrorReason_ERROR_REASON_TOO_MANY_CONNECTIONS,
				"the tenant or this server has too many connections (limits.max_connections, of which a tenant holds %d at most): let callers share them, or close some", places.PerTenant())
		}
		c.leave = func() { places.Release(tenant) }
	}
	c.tenant = tenant
	c.free.Store(true)
	c.ended()
	return nil
}

// count counts a call without credentials and closes a connection with too
// many.
func (c *clientConn) count() {
	if c != nil && c.calls.Add(1) > pendingCallLimit {
		c.makeWay()
	}
}

// admitHealth counts a health call until ctx ends.
func (c *clientConn) admitHealth(ctx context.Context) error {
	if c == nil {
		return nil
	}
	if !c.free.Load() {
		c.count()
	}
	if !c.health.enter(ctx, maxHealthCalls) {
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED,
			"more than %d health calls at once on one connection", maxHealthCalls)
	}
	if left := c.left.Load(); left > healthBytes {
		c.left.CompareAndSwap(left, healthBytes)
	}
	return nil
}

type connAddr struct {
	net.Addr
	conn *clientConn
}

// connOf returns the connection of a call, or nil if the listener is not
// limited.
func connOf(ctx context.Context) *clientConn {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(connAddr); ok {
			return a.conn
		}
	}
	return nil
}

// pendingCalls counts running calls.
type pendingCalls struct{ n atomic.Int32 }

// enter counts a call until ctx ends, and returns false beyond limit.
func (p *pendingCalls) enter(ctx context.Context, limit int32) bool {
	if p.n.Add(1) > limit {
		p.n.Add(-1)
		return false
	}
	context.AfterFunc(ctx, func() { p.n.Add(-1) })
	return true
}
