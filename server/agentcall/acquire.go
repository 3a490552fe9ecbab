package agentcall

import (
	"context"
	"errors"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/names"
)

// KeyOf returns the key of the caller's sandbox of this id, and records the id for
// the audit.
func KeyOf(ctx context.Context, id string) agentconn.Key {
	c := call.Of(ctx)
	c.Audit.SandboxID = id
	return agentconn.Key{Tenant: c.Principal.Tenant, ID: id, Name: names.Substrate(c.Principal.Tenant, id)}
}

// inspects reports whether a call is no activity of its sandbox: it shows processes, or
// its caller may only read.
func inspects(ctx context.Context) bool {
	c := call.Of(ctx)
	return c.Principal.Role == authn.RoleReader || c.Method == sandboxv1.SandboxService_ListProcesses_FullMethodName
}

// Release ends the use of a connection of Acquire.
func Release(ctx context.Context, c *agentconn.Conn) {
	if inspects(ctx) {
		c.EndInspection()
	} else {
		c.Release()
	}
}

// Acquire returns a connection to the sandbox's agent, which must be ended with
// Release. The call counts as activity unless it inspects. incarnation is the one that
// the call expects, or "".
func (r *Router) Acquire(ctx context.Context, key agentconn.Key, incarnation string) (*agentconn.Conn, error) {
	return r.AcquireKnown(ctx, key, incarnation, nil)
}

// AcquireKnown is Acquire for a sandbox that the provider has just returned.
func (r *Router) AcquireKnown(ctx context.Context, key agentconn.Key, incarnation string, known *providers.Info) (*agentconn.Conn, error) {
	use := r.cfg.Agents.Acquire
	if inspects(ctx) {
		use = r.cfg.Agents.Inspect
	}
	c, err := use(ctx, key, known)
	if err != nil {
		return nil, r.NotFoundReason(key, err)
	}
	if incarnation != "" && incarnation != c.Incarnation {
		Release(ctx, c)
		now, err := r.cfg.Agents.Lookup(ctx, key)
		switch {
		case err != nil:
			return nil, r.NotFoundReason(key, err)
		case now.Incarnation == incarnation && (known == nil || known.Incarnation != incarnation):
			// The caller knew a newer incarnation than this server.
			return r.AcquireKnown(ctx, key, incarnation, &now)
		default:
			return nil, fault.Replaced(key.ID, now.Incarnation)
		}
	}
	if err := r.checkAge(ctx, c); err != nil {
		Release(ctx, c)
		return nil, r.NotFoundReason(key, err)
	}
	if inspects(ctx) {
		return c, nil
	}
	if err := r.cfg.Activity.Renew(ctx, c, time.Now()); err != nil {
		Release(ctx, c)
		if end, ok := r.cfg.Expired.Get(key.Name); ok && errors.Is(err, providers.ErrNotActive) {
			err = fault.Expired(key.ID, end)
		}
		return nil, r.NotFoundReason(key, err)
	}
	return c, nil
}

// checkAge returns an error if the sandbox's TTL has passed.
func (r *Router) checkAge(ctx context.Context, c *agentconn.Conn) error {
	if !r.cfg.Clock.Aged(*c.Info()) {
		return nil
	}
	// Another replica may have extended it.
	fresh, err := r.cfg.Agents.Lookup(ctx, c.Key)
	if err != nil {
		return err
	}
	c.SetInfo(fresh)
	if r.cfg.Clock.Aged(fresh) {
		return fault.Expired(c.Key.ID, fresh.ExpireTime())
	}
	return nil
}

// NotFoundReason turns the provider's ErrNotFound into a public error: expired, or
// not found. It returns other errors unchanged.
func (r *Router) NotFoundReason(key agentconn.Key, err error) error {
	var public *fault.Error
	if !errors.Is(err, providers.ErrNotFound) || errors.As(err, &public) {
		return err
	}
	if end, ok := r.cfg.Expired.Get(key.Name); ok {
		return fault.Expired(key.ID, end)
	}
	return fault.NotFound(key.ID)
}

// FinalError returns the public error for a call that the server gives up.
func (r *Router) FinalError(ctx context.Context, err error) error {
	switch {
	case r.cfg.Stopping():
		return fault.ErrShuttingDown
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, agentconn.ErrBroken):
		return fault.AgentUnavailable(err)
	default:
		return err
	}
}

// StreamContext returns the context of a stream to the agent. It ends with the
// caller's, and the agent then starts its timer for lost callers. It does not end
// with the server: to the agent, its connection breaks then.
func (r *Router) StreamContext(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	up, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if !r.cfg.Stopping() {
			cancel(context.Cause(ctx))
		}
	})
	return up, func(cause error) {
		stop()
		cancel(cause)
	}
}
