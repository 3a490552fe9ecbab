package server

import (
	"context"
	"errors"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/fault"
)

// keyOf returns the key of the caller's sandbox of this id, and records the id for
// the audit.
func keyOf(ctx context.Context, id string) agentconn.Key {
	c := callOf(ctx)
	c.audit.SandboxID = id
	return agentconn.Key{Tenant: c.principal.Tenant, ID: id, Name: substrateName(c.principal.Tenant, id)}
}

// acquire returns a connection to the sandbox's agent, which must be released. The
// call counts as activity. incarnation is the one that the call expects, or "".
func (s *Server) acquire(ctx context.Context, key agentconn.Key, incarnation string) (*agentconn.Conn, error) {
	return s.acquireKnown(ctx, key, incarnation, nil)
}

// acquireKnown is acquire for a sandbox that the provider has just returned.
func (s *Server) acquireKnown(ctx context.Context, key agentconn.Key, incarnation string, known *providers.Info) (*agentconn.Conn, error) {
	c, err := s.agents.Acquire(ctx, key, known)
	if err != nil {
		return nil, s.notFoundReason(key, err)
	}
	if incarnation != "" && incarnation != c.Incarnation {
		c.Release()
		now, err := s.agents.Lookup(ctx, key)
		switch {
		case err != nil:
			return nil, s.notFoundReason(key, err)
		case now.Incarnation == incarnation && (known == nil || known.Incarnation != incarnation):
			// The caller knew a newer incarnation than this server.
			return s.acquireKnown(ctx, key, incarnation, &now)
		default:
			return nil, fault.Replaced(key.ID, now.Incarnation)
		}
	}
	if err := s.checkAge(ctx, c); err != nil {
		c.Release()
		return nil, s.notFoundReason(key, err)
	}
	if err := s.activity.Renew(ctx, c, time.Now()); err != nil {
		c.Release()
		if end, ok := s.expired.Get(key.Name); ok && errors.Is(err, providers.ErrNotActive) {
			err = fault.Expired(key.ID, end)
		}
		return nil, s.notFoundReason(key, err)
	}
	return c, nil
}

// checkAge returns an error if the sandbox's TTL has passed.
func (s *Server) checkAge(ctx context.Context, c *agentconn.Conn) error {
	if !s.clock.Aged(*c.Info()) {
		return nil
	}
	// Another replica may have extended it.
	fresh, err := s.agents.Lookup(ctx, c.Key)
	if err != nil {
		return err
	}
	c.SetInfo(fresh)
	if s.clock.Aged(fresh) {
		return fault.Expired(c.Key.ID, fresh.ExpireTime())
	}
	return nil
}

// notFoundReason turns the provider's ErrNotFound into a public error: expired, or
// not found. It returns other errors unchanged.
func (s *Server) notFoundReason(key agentconn.Key, err error) error {
	var public *fault.Error
	if !errors.Is(err, providers.ErrNotFound) || errors.As(err, &public) {
		return err
	}
	if end, ok := s.expired.Get(key.Name); ok {
		return fault.Expired(key.ID, end)
	}
	return fault.NotFound(key.ID)
}

// finalError returns the public error for a call that the server gives up.
func (s *Server) finalError(ctx context.Context, err error) error {
	switch {
	case s.isStopping():
		return fault.ErrShuttingDown
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, agentconn.ErrBroken):
		return fault.AgentUnavailable(err)
	default:
		return err
	}
}

// agentContext returns the context of a stream to the agent. It ends with the
// caller's, and the agent then starts its timer for lost callers. It does not end
// with the server: to the agent, its connection breaks then.
func (s *Server) agentContext(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	up, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if !s.isStopping() {
			cancel(context.Cause(ctx))
		}
	})
	return up, func(cause error) {
		stop()
		cancel(cause)
	}
}
