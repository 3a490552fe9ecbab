package admission

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/limit"
	"github.com/sandgate/sandgate/server/quota"
)

// pipeConn is a connection in memory with access to its other end.
type pipeConn struct {
	net.Conn
	from net.Addr
	far  net.Conn
}

func (p *pipeConn) RemoteAddr() net.Addr { return p.from }

func newPipe(t *testing.T, host string) *pipeConn {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	return &pipeConn{Conn: near, far: far, from: &net.TCPAddr{IP: net.ParseIP(host), Port: 1}}
}

// open reports whether the server has not closed the connection.
func (p *pipeConn) open() bool {
	_ = p.far.SetReadDeadline(time.Now().Add(time.Nanosecond))
	_, err := p.far.Read(make([]byte, 1))
	var late net.Error
	return errors.As(err, &late) && late.Timeout()
}

// Beyond the bound the oldest pending connection of the host is closed, and none
// of another host, nor one that has authenticated.
func TestOldestPendingConnectionOfAHostIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := newConnLimiter()
		all := []*clientConn{}
		track := func(p *pipeConn) *clientConn {
			c := limiter.track(p)
			all = append(all, c)
			return c
		}
		other := newPipe(t, "192.0.2.2")
		track(other)
		known := newPipe(t, "192.0.2.1")
		_ = track(known).authenticated("", nil)
		var pipes []*pipeConn
		for range pendingConnsPerHost {
			p := newPipe(t, "192.0.2.1")
			track(p)
			pipes = append(pipes, p)
		}
		time.Sleep(lingerTime)
		pipes = append(pipes, newPipe(t, "192.0.2.1"))
		track(pipes[pendingConnsPerHost])
		if pipes[0].open() {
			t.Error("the oldest was kept")
		}
		if !pipes[1].open() || !pipes[pendingConnsPerHost].open() {
			t.Error("a newer one was closed")
		}
		if !other.open() || !known.open() {
			t.Error("another host's, or an authenticated one was closed")
		}
		for i := range pendingConns {
			track(newPipe(t, fmt.Sprintf("198.51.%d.%d", i>>8, i&255)))
		}
		if other.open() || !known.open() {
			t.Error("the oldest of all must give way, and no authenticated one")
		}
		if n := limiter.pending.Len(); n != pendingConns {
			t.Errorf("%d are pending", n)
		}
		for _, c := range all {
			_ = c.Close()
		}
	})
}

// A connection that makes way within a second of its beginning is not served any more,
// and closed one to two seconds after its beginning, so that a client that comes back at
// once makes no more in that time.
func TestConnectionThatMakesWayLingers(t *testing.T) {
	const lingering = 10
	synctest.Test(t, func(t *testing.T) {
		limiter := newConnLimiter()
		limiter.lingering = limit.New(lingering)
		var conns []*clientConn
		var pipes []*pipeConn
		track := func(n int) {
			for range n {
				p := newPipe(t, "192.0.2.1")
				pipes, conns = append(pipes, p), append(conns, limiter.track(p))
			}
		}
		track(pendingConnsPerHost)
		served, first := make(chan error, 1), conns[0]
		go func() {
			_, err := first.Read(make([]byte, 1))
			_ = first.Close()
			served <- err
		}()
		synctest.Wait()
		track(1)
		synctest.Wait()
		if err := <-served; err == nil {
			t.Error("it is served on")
		}
		track(1)
		if _, err := conns[1].Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("it is served: %v", err)
		}
		if conns[1].authenticated("a", nil) != nil || conns[1].free.Load() {
			t.Error("it authenticates")
		}
		track(lingering - 2)
		if !pipes[lingering-1].open() {
			t.Error("fewer linger than may")
		}
		track(1)
		if pipes[lingering].open() {
			t.Error("more linger than may")
		}
		time.Sleep(lingerTime - time.Millisecond)
		if !pipes[0].open() || !pipes[1].open() {
			t.Error("it was closed too early")
		}
		time.Sleep(lingerSpread + time.Millisecond)
		synctest.Wait()
		if pipes[0].open() || pipes[1].open() || !pipes[lingering+1].open() {
			t.Error("it is still open, or one that is pending was closed")
		}
		if n := len(limiter.lingering); n != 0 {
			t.Errorf("%d places to linger are taken", n)
		}
		for _, c := range conns {
			_ = c.Close()
		}
	})
}

func TestPendingConnectionIsBoundedInTimeCallsAndBytes(t *testing.T) {
	for name, c := range map[string]struct {
		use  func(*clientConn, *pipeConn)
		open bool
	}{
		"silent": {func(*clientConn, *pipeConn) { time.Sleep(pendingTime + time.Second) }, false},
		"authenticated": {func(c *clientConn, _ *pipeConn) {
			_ = c.authenticated("", nil)
			time.Sleep(2 * pendingTime)
		}, true},
		"too many calls": {func(c *clientConn, _ *pipeConn) {
			for range pendingCallLimit + 1 {
				c.count()
			}
		}, false},
		"as many calls as allowed": {func(c *clientConn, _ *pipeConn) {
			for range pendingCallLimit {
				c.count()
			}
		}, true},
		"too many refused calls, authenticated": {func(c *clientConn, _ *pipeConn) {
			_ = c.authenticated("", nil)
			for range pendingCallLimit + 1 {
				c.count()
			}
		}, false},
		"many refused calls, not in a row": {func(c *clientConn, _ *pipeConn) {
			for range 3 {
				_ = c.authenticated("", nil)
				for range pendingCallLimit {
					c.count()
				}
			}
		}, true},
		"many health calls": {func(c *clientConn, _ *pipeConn) { askHealth(c, pendingCallLimit+1) }, false},
		"many health calls, authenticated": {func(c *clientConn, _ *pipeConn) {
			_ = c.authenticated("", nil)
			askHealth(c, 2*pendingCallLimit)
		}, true},
		"too many bytes": {func(c *clientConn, p *pipeConn) { send(c, p, pendingBytes+1) }, false},
		"many bytes":     {func(c *clientConn, p *pipeConn) { send(c, p, pendingBytes) }, true},
		"too many bytes with health": {func(c *clientConn, p *pipeConn) {
			if err := c.admitHealth(context.Background()); err != nil {
				panic(err)
			}
			send(c, p, healthBytes+1)
		}, false},
		"many bytes, authenticated": {func(c *clientConn, p *pipeConn) {
			_ = c.authenticated("", nil)
			send(c, p, 2*pendingBytes)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipe(t, "192.0.2.1")
				conn := newConnLimiter().track(p)
				c.use(conn, p)
				time.Sleep(lingerTime + lingerSpread)
				synctest.Wait()
				if p.open() != c.open {
					t.Errorf("open: %v", !c.open)
				}
				conn.Close()
			})
		})
	}
}

// A connection of a caller who goes on with wrong credentials is read slowly, until a
// call on it has right ones.
func TestConnectionOfRefusedCallsIsReadSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipe(t, "192.0.2.1")
		conn := newConnLimiter().track(p)
		defer conn.Close()
		read := func() time.Duration {
			begun := time.Now()
			send(conn, p, 1)
			return time.Since(begun)
		}
		for range refusedCalls {
			conn.count()
		}
		if took := read(); took != 0 {
			t.Errorf("after %d refused calls a read takes %v", refusedCalls, took)
		}
		conn.count()
		if took := read(); took != refusedPause {
			t.Errorf("after one more it takes %v", took)
		}
		_ = conn.authenticated("a", nil)
		if took := read(); took != 0 {
			t.Errorf("after an authenticated one it takes %v", took)
		}
	})
}

// askHealth makes n health calls, one after the other.
func askHealth(c *clientConn, n int) {
	for range n {
		ctx, cancel := context.WithCancel(context.Background())
		_ = c.admitHealth(ctx)
		cancel()
	}
}

// send writes n bytes to a connection that is read.
func send(c *clientConn, p *pipeConn, n int) {
	go func() { _, _ = p.far.Write(make([]byte, n)) }()
	buf := make([]byte, 32<<10)
	for n > 0 {
		k, err := c.Read(buf)
		if err != nil {
			return
		}
		n -= k
	}
}

// After a call was cut its connection is not read for a while, so that a caller who calls
// again at once is slowed down by its own flow control.
func TestConnectionOfCutCallsIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 64 << 10
		p := newPipe(t, "192.0.2.1")
		c := newConnLimiter().track(p)
		defer c.Close()
		_ = c.authenticated("", nil)
		cut := make(chan error, 1)
		call, err := quota.NewRequests(limit).Expect("a", &c.received, 0, func(exceeded error) { cut <- exceeded })
		if err != nil {
			t.Fatal(err)
		}
		defer call.Release()
		begin := time.Now()
		send(c, p, limit)
		if exceeded := <-cut; exceeded == nil {
			t.Error("the call was cut without a cause")
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("below the bound the connection was not read for %v", took)
		}
		send(c, p, 1)
		if took := time.Since(begin); took < time.Second/2 || took > 2*time.Second {
			t.Errorf("after a call of %d bytes was cut, the limit per second, the connection was not read for %v", limit, took)
		}
	})
}

// A health call does not make a tenant's connection look like a proxy's, which is always
// read.
func TestHealthCallLeavesAConnectionItsTenants(t *testing.T) {
	const limit = 64 << 10
	g := New(nobody{}, func(method string) string { return method }, quota.NewRequests(limit), 4)
	c := newConnLimiter().track(newPipe(t, "192.0.2.1"))
	defer c.Close()
	if err := c.authenticated("a", g.places); err != nil {
		t.Fatal(err)
	}
	expect := func(method, tenant string) *quota.Request {
		t.Helper()
		one, ctx := call.New(peer.NewContext(t.Context(), &peer.Peer{Addr: c.RemoteAddr()}), method)
		one.Method, one.Principal = method, authn.Principal{Tenant: tenant}
		q, err := g.Expect(ctx, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	first := expect(sandboxv1.SandboxService_WriteFile_FullMethodName, "a")
	defer first.Release()
	health := expect(healthv1.Health_Check_FullMethodName, "")
	defer health.Release()
	// A method that a caller invented is served as a stream of messages.
	invented, ctx := call.New(peer.NewContext(t.Context(), &peer.Peer{Addr: c.RemoteAddr()}), "Nope")
	invented.Method = "/grpc.health.v1.Health/Nope"
	defer g.Stream(ctx).Release()
	c.received.Add(limit)
	if c.received.Pause() <= 0 {
		t.Error("the connection of a cut call is read")
	}
}

// What a connection of visitors has received is not the message of a call that is made for
// one of their requests.
func TestCallForAVisitorCountsItsOwnMessage(t *testing.T) {
	const limit = 64 << 10
	g := New(nobody{}, func(method string) string { return method }, quota.NewRequests(limit), 4)
	c := newConnLimiter().track(newPipe(t, "192.0.2.1"))
	defer c.Close()
	c.received.Add(2 * limit)
	peered := peer.NewContext(t.Context(), &peer.Peer{Addr: c.RemoteAddr()})
	ctx, cancel := g.Vouch(peered, sandboxv1.SandboxService_Download_FullMethodName, authn.Principal{Tenant: "a"})
	defer cancel(nil)
	q, err := g.Expect(ctx, func(exceeded error) { t.Error(exceeded) })
	if err != nil {
		t.Fatal(err)
	}
	defer q.Release()
	c.received.Add(1)
}

// nobody authenticates no caller.
type nobody struct{}

func (nobody) Authenticate(context.Context) (authn.Principal, error) {
	return authn.Principal{}, authn.ErrNoCredentials
}
func (nobody) Name() string { return "nobody" }
