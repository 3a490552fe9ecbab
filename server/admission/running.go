package admission

import (
	"context"
	"errors"
	"sync"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
)

// cutDelay is how long a call whose credentials ended may take to return. Then
// its stream is cut, which also ends a send to a caller that receives nothing.
const cutDelay = time.Second

var errRevoked = fault.New(sandboxv1.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID,
	"the credentials of this call expired or were revoked while it ran").With("outcome", "unknown")

// running holds the running calls, whose credentials are checked again.
type running struct {
	mu    sync.Mutex
	calls map[*call.Call]runningCall
	// waiting are the calls whose authenticator is asking another server.
	waiting map[*call.Call]bool
	present presence
}

type runningCall struct {
	tenant string
	check  func() error
}

func newRunning() *running {
	return &running{
		calls: make(map[*call.Call]runningCall), waiting: make(map[*call.Call]bool),
		present: presence{running: make(map[string]int)},
	}
}

// add registers a call. check returns an error once its caller is no longer
// authenticated, errEnded once the call has ended, and a *slowCheck if that takes
// longer.
func (r *running) add(c *call.Call, check func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, again := r.calls[c]; !again {
		r.present.begin(c.Principal.Tenant)
	}
	r.calls[c] = runningCall{tenant: c.Principal.Tenant, check: check}
}

func (r *running) remove(c *call.Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, ok := r.calls[c]; ok {
		delete(r.calls, c)
		r.present.end(was.tenant, time.Now())
	}
}

// others reports whether another tenant has a call running, or had one a moment ago.
func (r *running) others(tenant string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.present.others(tenant, time.Now())
}

// slowCheck is a check that asks another server.
type slowCheck struct{ wait func() error }

func (*slowCheck) Error() string { return "the check takes longer" }

// later ends a call after a slow check, of which a call has one at a time.
func (r *running) later(c *call.Call, slow *slowCheck) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[c] {
		return
	}
	r.waiting[c] = true
	go func() {
		err := fault.Catch(slow.wait)
		r.mu.Lock()
		delete(r.waiting, c)
		r.mu.Unlock()
		r.conclude(c, err)
	}()
}

// conclude ends a call unless err is nil.
func (r *running) conclude(c *call.Call, err error) {
	switch {
	case err == nil:
	case errors.Is(err, errEnded):
		r.remove(c)
	default:
		r.remove(c)
		c.End(errRevoked)
		time.AfterFunc(cutDelay, func() { c.Cut(errRevoked) })
	}
}

// errEnded means that a call has ended. It is for calls that never reached an
// interceptor; others are removed when they finish.
var errEnded = errors.New("the call has ended")

// check ends the calls whose credentials are no longer valid.
func (r *running) check() {
	r.mu.Lock()
	calls := make(map[*call.Call]func() error, len(r.calls))
	for c, running := range r.calls {
		calls[c] = running.check
	}
	r.mu.Unlock()
	for c, check := range calls {
		err := check()
		if slow := (*slowCheck)(nil); errors.As(err, &slow) {
			r.later(c, slow)
			continue
		}
		r.conclude(c, err)
	}
}

// reauthenticate checks that a running call's credentials are still those of
// the same principal. An authenticator that fails temporarily ends no call.
func (g *Gate) reauthenticate(ctx context.Context, was authn.Principal) error {
	if ctx.Err() != nil {
		return errEnded
	}
	p, err := g.authenticator.Authenticate(ctx)
	if pending := (*authn.Pending)(nil); errors.As(err, &pending) {
		return &slowCheck{func() error {
			p, err := pending.Wait(ctx)
			return unlessEqual(was, p, err)
		}}
	}
	return unlessEqual(was, p, err)
}

// unlessEqual returns an error if the authenticator's answer is not the same
// principal as before.
func unlessEqual(was, p authn.Principal, err error) error {
	switch {
	case errors.Is(err, authn.ErrNoCredentials), errors.Is(err, authn.ErrUnknownCredentials), errors.Is(err, authn.ErrForbidden):
		return err
	case err == nil && !p.Equal(was):
		return authn.ErrUnknownCredentials
	default:
		return nil
	}
}
