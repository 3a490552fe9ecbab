package egress

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

var errLost = errors.New("another address answered first")

// race connects to the first of several addresses that answers. net.Dialer does
// so only for names that it resolves by itself.
type race struct {
	dialer net.Dialer
	port   uint16
}

type attempt struct {
	conn net.Conn
	err  error
}

// run tries the addresses in their order, each after the one before has failed
// or not answered for a while. It returns when all attempts have ended.
func (r *race) run(ctx context.Context, addrs []netip.Addr) (*net.TCPConn, error) {
	if len(addrs) == 1 {
		conn, err := r.dial(ctx, addrs[0])
		switch {
		case err == nil:
			return conn.(*net.TCPConn), nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make(chan attempt)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var winner net.Conn
	var failure error
	for next, running := 0, 0; ; {
		var start <-chan time.Time
		if next < len(addrs) && winner == nil {
			start = timer.C
		} else if running == 0 {
			break
		}
		select {
		case <-start:
			addr := addrs[next]
			go func() {
				conn, err := r.dial(ctx, addr)
				results <- attempt{conn, err}
			}()
			next++
			running++
			timer.Reset(nextAddr)
		case result := <-results:
			running--
			switch {
			case result.err != nil:
				failure = cmp.Or(failure, result.err)
				timer.Reset(0)
			case winner != nil:
				_ = result.conn.Close()
			default:
				winner = result.conn
				cancel(errLost)
			}
		}
	}
	if winner == nil {
		if ctx.Err() != nil {
			failure = context.Cause(ctx)
		}
		return nil, failure
	}
	return winner.(*net.TCPConn), nil
}

func (r *race) dial(ctx context.Context, addr netip.Addr) (net.Conn, error) {
	return r.dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, r.port).String())
}
