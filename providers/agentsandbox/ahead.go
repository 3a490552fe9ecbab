package agentsandbox

import (
	"context"
	"errors"
	"net"
	"time"
)

// ahead is a connection to the agent in the pod that the controller has chosen
// for a claim, opened while the controller still writes what follows from its
// choice. It counts only when that ends with the pod's Sandbox as the claim's;
// nothing is sent on it before. The zero value has none.
type ahead struct {
	sandbox string // that was chosen
	cancel  context.CancelFunc
	done    chan struct{} // closed when the fields below are as they stay

	since time.Time
	seat  seat
	note  note
	conn  net.Conn
}

const (
	// aheadTime bounds how long a connection is tried for that is only an aid.
	aheadTime = 2 * time.Second
	// freshFor is how long a connection stands for its pod.
	freshFor = time.Second
)

var errAheadLate = errors.New("the agent was not reached in time")

// begin connects to the agent of a claim's chosen Sandbox, once. An agent that
// is not there yet, or is not as the claim wants it, is left to finish.
func (a *ahead) begin(ctx context.Context, p *Provider, s subject, chosen string) {
	if a.done != nil {
		return
	}
	ctx, a.cancel = context.WithTimeoutCause(ctx, aheadTime, errAheadLate)
	a.sandbox, a.done = chosen, make(chan struct{})
	s.sandbox = chosen
	go func() {
		defer close(a.done)
		at, err := p.seat(ctx, s)
		if err != nil {
			return
		}
		n := readNote(at.pod)
		if !n.serves(at.id) || n.Workdir != at.workdir {
			return
		}
		conn, err := p.open(ctx, at, n)
		if err != nil {
			return
		}
		a.since, a.seat, a.note, a.conn = time.Now(), at, n, conn
	}()
}

// reached returns where the agent is, if the connection is one to that Sandbox's
// and the agent has spoken on it just now.
func (a *ahead) reached(sandbox string) (seat, bool) {
	if a.done == nil || a.sandbox != sandbox {
		return seat{}, false
	}
	<-a.done
	if a.conn == nil || time.Since(a.since) >= freshFor {
		return seat{}, false
	}
	return a.seat, true
}

// take hands the connection over where reached tells of one, and returns nil
// elsewhere.
func (a *ahead) take(sandbox string) (net.Conn, note) {
	if _, ok := a.reached(sandbox); !ok {
		return nil, note{}
	}
	conn := a.conn
	a.conn = nil
	return conn, a.note
}

// drop ends what nobody has taken.
func (a *ahead) drop() {
	if a.done == nil {
		return
	}
	a.cancel()
	<-a.done
	if a.conn != nil {
		_ = a.conn.Close()
	}
}
