package kube

import (
	"context"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/tools/remotecommand"
)

const (
	// openTimeout bounds the handshake of an exec stream.
	openTimeout = 30 * time.Second
	// settleTime is how long after its handshake a stream is not cancelled.
	settleTime = 2 * time.Second
)

// stream runs a command with its streams, until it ends or life does. The
// handshake obeys the deadline of ctx and no cancellation.
//
// client-go leaks five goroutines when a connection is closed before it reads from
// it, that is right after the handshake. So the end of life takes effect when
// reading has begun: settleTime after the handshake, at the earliest.
func (e *Executor) stream(life, ctx context.Context, at Container, command []string, options remotecommand.StreamOptions) error {
	executor, err := remotecommand.NewWebSocketExecutor(e.config, http.MethodGet, e.url(at, command, options).String())
	if err != nil {
		return err
	}
	deadline := time.Now().Add(openTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	open := make(chan struct{})
	running, cancel := context.WithCancelCause(context.WithValue(context.WithoutCancel(life), handshakeKey{}, sync.OnceFunc(func() { close(open) })))
	ended := make(chan struct{})
	defer func() {
		close(ended)
		cancel(nil)
	}()
	go func() {
		select {
		case <-open:
		case <-ended:
			return
		}
		settled := time.NewTimer(settleTime)
		defer settled.Stop()
		select {
		case <-settled.C:
		case <-ended:
			return
		}
		select {
		case <-life.Done():
			cancel(context.Cause(life))
		case <-ended:
		}
	}()
	return executor.StreamWithContext(openingContext{Context: running, deadline: deadline}, options)
}

// openingContext has the deadline of a handshake, which does not end what follows.
type openingContext struct {
	context.Context //nolint:containedctx // it is a context itself
	deadline        time.Time
}

func (c openingContext) Deadline() (time.Time, bool) { return c.deadline, true }

// handshakeKey is the key of the function to call after the handshake of a request.
type handshakeKey struct{}

type handshakeReporter struct{ next http.RoundTripper }

func reportHandshake(next http.RoundTripper) http.RoundTripper { return handshakeReporter{next} }

// RoundTrip implements http.RoundTripper.
func (r handshakeReporter) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if done, ok := req.Context().Value(handshakeKey{}).(func()); ok && err == nil {
		done()
	}
	return resp, err
}
