//go:build linux

package main

import (
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// proxy relays between the clients and the server and, while it is armed, cuts every
// connection at a moment that the seed chooses.
type proxy struct {
	listener net.Listener
	target   string
	seed     uint64
	tally    *tally

	armed   atomic.Bool
	number  atomic.Uint64
	running sync.WaitGroup
}

func newProxy(target string, seed uint64, t *tally) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, target: target, seed: seed, tally: t}
	p.running.Go(p.accept)
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// close stops accepting connections and waits until the open ones end.
func (p *proxy) close() {
	_ = p.listener.Close()
	p.running.Wait()
}

func (p *proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		l := &link{proxy: p, client: conn.(*net.TCPConn), done: make(chan struct{})}
		l.plan = newPlan(rand.New(rand.NewPCG(p.seed, p.number.Add(1))))
		p.running.Go(l.run)
	}
}

// How a connection is cut.
const (
	cutReset     = iota // both sides see a reset
	cutClose            // both sides see an orderly end in the middle of a call
	cutUp               // the server sees an end, the client a reset a bit later
	cutDown             // the client sees an end, the server a reset a bit later
	cutStall            // nothing moves for a while, then both see a reset
	cutKindCount        // the number of kinds
)

// plan is when and how one connection is cut: after so many bytes in one
// direction, or after a time, whichever comes first.
type plan struct {
	kind     int
	after    time.Duration
	up, down int64 // bytes, negative: any number
	stall    time.Duration
}

func newPlan(chance *rand.Rand) plan {
	p := plan{kind: chance.IntN(cutKindCount), up: -1, down: -1}
	p.stall = time.Duration(between(chance, 5e6, 5e8))
	p.after = 2 * time.Second
	switch n := chance.IntN(20); {
	case n < 1: // while the connection is set up
		p.down = int64(between(chance, 1, 200))
	case n < 2:
		p.up = int64(between(chance, 1, 400))
	case n < 8:
		p.down = int64(between(chance, 200, 2<<20))
	case n < 12:
		p.up = int64(between(chance, 200, 256<<10))
	default:
		p.after = time.Duration(between(chance, 5e6, 2e9))
	}
	return p
}

// between draws from low to high, log-uniformly.
func between(chance *rand.Rand, low, high float64) float64 {
	return low * math.Exp(chance.Float64()*math.Log(high/low))
}

// link is one connection through the proxy.
type link struct {
	proxy          *proxy
	plan           plan
	client, server *net.TCPConn
	gate           sync.RWMutex // held while nothing may move
	once           sync.Once
	done           chan struct{}
}

func (l *link) run() {
	conn, err := net.Dial("tcp", l.proxy.target)
	if err != nil {
		// The server is being restarted.
		_ = l.client.SetLinger(0)
		_ = l.client.Close()
		return
	}
	l.server = conn.(*net.TCPConn)
	timer := time.AfterFunc(l.plan.after, l.cut)
	var both sync.WaitGroup
	both.Go(func() { l.pass(l.server, l.client, l.plan.up) })
	both.Go(func() { l.pass(l.client, l.server, l.plan.down) })
	both.Wait()
	timer.Stop()
	l.end(func() {})
	<-l.done
}

// pass copies one direction. It may cut at any byte.
func (l *link) pass(dst, src *net.TCPConn, limit int64) {
	buffer := make([]byte, 64<<10)
	for total := int64(0); ; {
		n, err := src.Read(buffer)
		cut := limit >= 0 && total+int64(n) >= limit && l.proxy.armed.Load()
		if cut {
			n = int(max(limit-total, 0))
		}
		total += int64(n)
		l.gate.RLock()
		_, writeErr := dst.Write(buffer[:n])
		l.gate.RUnlock()
		switch {
		case cut:
			l.cut()
			return
		case errors.Is(err, io.EOF) && writeErr == nil:
			_ = dst.CloseWrite()
			return
		case err != nil || writeErr != nil:
			l.end(func() {})
			return
		}
	}
}

// cut breaks the connection as planned, if it is still whole.
func (l *link) cut() {
	if !l.proxy.armed.Load() {
		return
	}
	l.end(func() {
		l.proxy.tally.hop1.Add(1)
		l.proxy.tally.kinds[l.plan.kind].Add(1)
		switch l.plan.kind {
		case cutReset:
			reset(l.client, l.server)
		case cutUp:
			_ = l.server.CloseWrite()
			time.Sleep(l.plan.stall / 10)
			reset(l.client)
		case cutDown:
			_ = l.client.CloseWrite()
			time.Sleep(l.plan.stall / 10)
			reset(l.server)
		case cutStall:
			// A blocked write holds the gate already, so nothing moves either.
			if l.gate.TryLock() {
				time.AfterFunc(l.plan.stall, l.gate.Unlock)
			}
			time.Sleep(l.plan.stall)
			reset(l.client, l.server)
		}
	})
}

// end closes both sides once, after how.
func (l *link) end(how func()) {
	l.once.Do(func() {
		how()
		_ = l.client.Close()
		_ = l.server.Close()
		close(l.done)
	})
}

func reset(conns ...*net.TCPConn) {
	for _, c := range conns {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}
