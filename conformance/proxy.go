package conformance

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// How a connection is broken.
const (
	modeReset = "reset" // abruptly, on both sides
	modeClose = "close" // in order, on both sides, in mid-air
	modeHole  = "hole"  // for a while all that comes is swallowed; then as reset
)

// holeTime is how long a black hole drops bytes.
const holeTime = 700 * time.Millisecond

// proxy relays bytes between a client of the suite and the server and breaks
// connections on request. TLS passes through it.
type proxy struct {
	listener        net.Listener
	network, target string
	dir             string // of a unix socket; empty: none

	mu     sync.Mutex
	links  map[*link]bool
	down   bool
	closed bool
	plan   plan
	cuts   int

	running sync.WaitGroup
}

// plan breaks connections once so many bytes went in a direction. left below 1
// means that nothing is planned.
type plan struct {
	up    bool
	left  int64
	mode  string
	again func() int64 // the next amount; 0: that was it
}

// link is one connection through the proxy.
type link struct {
	client, server net.Conn
	swallow        atomic.Bool
}

// serverAddress returns the network and the address of a server, as net.Dial takes them.
func serverAddress(address string) (network, target string) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return "unix", path
	}
	if _, rest, ok := strings.Cut(address, "://"); ok {
		address = strings.TrimSuffix(rest, "/")
	}
	if strings.HasPrefix(address, ":") {
		address = "127.0.0.1" + address
	}
	return "tcp", address
}

// newProxy makes a proxy that ends with the case.
func newProxy(t T, address string) *proxy {
	t.Helper()
	p := &proxy{links: map[*link]bool{}}
	p.network, p.target = serverAddress(address)
	var err error
	if p.network == "tcp" {
		p.listener, err = net.Listen("tcp", "127.0.0.1:0")
	} else if p.dir, err = os.MkdirTemp("", "sandgate-proxy-"); err == nil {
		// As private as the server's own socket may be.
		p.listener, err = net.Listen("unix", filepath.Join(p.dir, "s"))
	}
	if err != nil {
		t.Fatalf("start a proxy: %v", err)
	}
	p.running.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// dial connects to the proxy.
func (p *proxy) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, p.network, p.listener.Addr().String())
}

func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	_ = p.listener.Close()
	for l := range p.links {
		l.end(modeReset)
	}
	p.mu.Unlock()
	p.running.Wait()
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}

func (p *proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(conn) })
	}
}

func (p *proxy) serve(conn net.Conn) {
	l := &link{client: conn}
	p.mu.Lock()
	refuse := p.down || p.closed
	p.mu.Unlock()
	var err error
	if !refuse {
		l.server, err = net.DialTimeout(p.network, p.target, 10*time.Second)
	}
	if refuse || err != nil {
		reset(conn)
		return
	}
	p.mu.Lock()
	refuse = p.down || p.closed
	if !refuse {
		p.links[l] = true
	}
	p.mu.Unlock()
	if refuse {
		l.end(modeReset)
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pass(l, l.server, l.client, true) })
	both.Go(func() { p.pass(l, l.client, l.server, false) })
	both.Wait()
	l.end(modeClose)
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// pass copies one direction, until it is cut: at the very byte, where it was
// planned.
func (p *proxy) pass(l *link, dst, src net.Conn, up bool) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := src.Read(buffer)
		n, mode := p.count(n, up)
		if n > 0 && !l.swallow.Load() {
			if _, failed := dst.Write(buffer[:n]); failed != nil {
				err = errors.Join(err, failed)
			}
		}
		if mode != "" {
			p.cut(mode)
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF) && !l.swallow.Load():
			closeWrite(dst)
			return
		default:
			if !l.swallow.Load() {
				l.end(modeClose)
			}
			return
		}
	}
}

// count takes bytes from the plan. It returns how many of them may pass, and how
// to break then.
func (p *proxy) count(n int, up bool) (int, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n <= 0 || p.plan.left <= 0 || p.plan.up != up {
		return n, ""
	}
	if p.plan.left -= int64(n); p.plan.left > 0 {
		return n, ""
	}
	n, mode := n+int(p.plan.left), p.plan.mode
	p.plan.left = p.plan.again()
	return n, mode
}

// arm plans where to break next.
func (p *proxy) arm(next plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan = next
	p.plan.left = next.again()
}

// disarm drops the plan and returns how often the proxy has broken anything.
func (p *proxy) disarm() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan = plan{}
	return p.cuts
}

// block refuses new connections, or lets them in again.
func (p *proxy) block(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = on
}

// cut breaks every open connection and returns their number.
func (p *proxy) cut(mode string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for l := range p.links {
		if l.swallow.Load() {
			continue // It is being broken already.
		}
		n++
		delete(p.links, l)
		if mode != modeHole {
			l.end(mode)
			continue
		}
		l.swallow.Store(true)
		timer := make(chan struct{})
		time.AfterFunc(holeTime, func() { defer close(timer); l.end(modeReset) })
		p.running.Go(func() { <-timer })
	}
	if n > 0 {
		p.cuts++
	}
	return n
}

// swallow makes all connections black holes, which never end by themselves.
func (p *proxy) swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.swallow.Store(true)
	}
}

// end closes both sides; it may be called again.
func (l *link) end(mode string) {
	if mode == modeReset {
		reset(l.client, l.server)
		return
	}
	_, _ = l.client.Close(), l.server.Close()
}

// reset closes so that the other side sees a reset, where the kind of socket has
// that.
func reset(conns ...net.Conn) {
	for _, c := range conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
}

func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
