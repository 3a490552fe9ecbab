package server

import (
	"context"
	"errors"
	"sync"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/fault"
)

// cutDelay is how long a call whose credentials ended may take to return. Then
// its stream is cut, which also ends a send to a caller that receives nothing.
const cutDelay = time.Second

var errRevoked = fault.New(sandboxv1.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID,
	"the credentials of this call expired or were revoked while it ran")

// running holds the running calls, whose credentials are checked again.
type running struct {
	mu    sync.Mutex
	calls map[*call]func() error
}

func newRunning() *running { return &running{calls: make(map[*call]func() error)} }

// add registers a call. check returns an error once its caller is no longer
// authenticated, and errEnded once the call has ended.
func (r *running) add(c *call, check func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[c] = check
}

func (r *running) remove(c *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.calls, c)
}

// errEnded means that a call has ended. It is for calls that never reached an
// interceptor; others are removed when they finish.
var errEnded = errors.New("the call has ended")

// check ends the calls whose credentials are no longer valid.
func (r *running) check() {
	r.mu.Lock()
	calls := make(map[*call]func() error, len(r.calls))
	for c, check := range r.calls {
		calls[c] = check
	}
	r.mu.Unlock()
	for c, check := range calls {
		switch err := check(); {
		case err == nil:
		case errors.Is(err, errEnded):
			r.remove(c)
		default:
			r.remove(c)
			c.end(errRevoked)
			time.AfterFunc(cutDelay, func() { c.cut(errRevoked) })
		}
	}
}

// reauthenticate checks that a running call's credentials are still those of
// the same principal. An authenticator that fails temporarily ends no call.
func (s *Server) reauthenticate(ctx context.Context, was authn.Principal) error {
	if ctx.Err() != nil {
		return errEnded
	}
	p, err := s.cfg.Authenticator.Authenticate(ctx)
	switch {
	case errors.Is(err, authn.ErrNoCredentials), errors.Is(err, authn.ErrUnknownCredentials):
		return err
	case err == nil && p != was:
		return authn.ErrUnknownCredentials
	default:
		return nil
	}
}

// recheck runs until the server stops.
func (s *Server) recheck() {
	tick := time.NewTicker(s.cfg.Timing.Recheck)
	defer tick.Stop()
	for {
		select {
		case <-s.halt:
			return
		case <-tick.C:
			s.running.check()
		}
	}
}
