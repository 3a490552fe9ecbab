package agentsandbox

import (
	"context"
	"errors"
	"net"
	"time"
)

// speculativeDial is a connection to the agent in the pod that the controller has
// chosen for a claim, opened while the controller still writes the status. It
// counts only if the claim gets that pod's Sandbox in the end; nothing is sent on
// it before. The zero value has no connection.
type speculativeDial struct {
	sandbox string // the chosen one
	cancel  context.CancelFunc
	done    chan struct{} // closed when the fields below are as they stay

	since time.Time
	at    agentContainer
	agent agentAnnotation
	conn  net.Conn
}

const (
	// speculativeTime bounds the attempt.
	speculativeTime = 2 * time.Second
	// maxDialAge is how long an open connection proves that its pod runs.
	maxDialAge = time.Second
)

var errDialLate = errors.New("the agent was not reached in time")

// begin connects to the agent of a claim's chosen Sandbox, once. If the agent is
// missing or does not fit the claim, finish takes care of it.
func (a *speculativeDial) begin(ctx context.Context, p *Provider, s observed, chosen string) {
	if a.done != nil {
		return
	}
	ctx, a.cancel = context.WithTimeoutCause(ctx, speculativeTime, errDialLate)
	a.sandbox, a.done = chosen, make(chan struct{})
	s.sandbox = chosen
	go func() {
		defer close(a.done)
		at, err := p.agentContainer(ctx, s)
		if err != nil {
			return
		}
		n := readAnnotation(at.pod)
		if !at.suits(n) {
			return
		}
		conn, err := p.open(ctx, at, n)
		if err != nil {
			return
		}
		a.since, a.at, a.agent, a.conn = time.Now(), at, n, conn
	}()
}

// reached returns the agent's container, if the connection leads to that Sandbox
// and is younger than maxDialAge.
func (a *speculativeDial) reached(sandbox string) (agentContainer, bool) {
	if a.done == nil || a.sandbox != sandbox {
		return agentContainer{}, false
	}
	<-a.done
	if a.conn == nil || time.Since(a.since) >= maxDialAge {
		return agentContainer{}, false
	}
	return a.at, true
}

// take returns the connection that reached reports, or nil.
func (a *speculativeDial) take(sandbox string) (net.Conn, agentAnnotation) {
	if _, ok := a.reached(sandbox); !ok {
		return nil, agentAnnotation{}
	}
	conn := a.conn
	a.conn = nil
	return conn, a.agent
}

// drop closes a connection that was not taken.
func (a *speculativeDial) drop() {
	if a.done == nil {
		return
	}
	a.cancel()
	<-a.done
	if a.conn != nil {
		_ = a.conn.Close()
	}
}
