package server

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/metadata"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/fault"
)

// boxOf finds the caller's sandbox of this id and notes it for the audit.
func keyOf(ctx context.Context, id string) agentconn.Key {
	c := callOf(ctx)
	c.audit.SandboxID = id
	return agentconn.Key{Tenant: c.principal.Tenant, ID: id, Name: substrateName(c.principal.Tenant, id)}
}

// reach returns a tunnel to the sandbox, which must be released, and counts
// the call as activity.
func (s *Server) reach(ctx context.Context, key agentconn.Key, incarnation string) (*agentconn.Conn, error) {
	return s.reachKnown(ctx, key, incarnation, nil)
}

// reachKnown is reach for a sandbox that the provider has just told of, which
// spares asking it again.
func (s *Server) reachKnown(ctx context.Context, key agentconn.Key, incarnation string, known *providers.Info) (*agentconn.Conn, error) {
	t, err := s.agents.Acquire(ctx, key, known)
	if err != nil {
		return nil, s.explain(key, err)
	}
	if incarnation != "" && incarnation != t.Incarnation {
		t.Release()
		now, err := s.agents.Lookup(ctx, key)
		switch {
		case err != nil:
			return nil, s.explain(key, err)
		case now.Incarnation == incarnation && (known == nil || known.Incarnation != incarnation):
			// The caller knows more than this server did.
			return s.reachKnown(ctx, key, incarnation, &now)
		default:
			return nil, fault.Replaced(key.ID, now.Incarnation)
		}
	}
	if s.clock.Aged(*t.Info()) {
		// Another replica may have prolonged it meanwhile.
		fresh, err := s.agents.Lookup(ctx, key)
		if err == nil {
			t.SetInfo(fresh)
			if s.clock.Aged(fresh) {
				err = fault.Expired(key.ID, fresh.ExpireTime())
			}
		}
		if err != nil {
			t.Release()
			return nil, s.explain(key, err)
		}
	}
	if err := s.activity.Renew(ctx, t, time.Now()); err != nil {
		t.Release()
		if end, ok := s.expired.Get(key.Name); ok && errors.Is(err, providers.ErrNotActive) {
			err = fault.Expired(key.ID, end)
		}
		return nil, s.explain(key, err)
	}
	return t, nil
}

// explain tells a caller about a sandbox that is gone why it is.
func (s *Server) explain(key agentconn.Key, err error) error {
	var told *fault.Error
	if !errors.Is(err, providers.ErrNotFound) || errors.As(err, &told) {
		return err
	}
	if end, ok := s.expired.Get(key.Name); ok {
		return fault.Expired(key.ID, end)
	}
	return fault.NotFound(key.ID)
}

// broken is what the caller is told when the way to the agent broke and could
// not be mended.
func (s *Server) broken(ctx context.Context, err error) error {
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

// target is what every call to a sandbox names.
type target interface {
	GetSandboxId() string
	GetExpectedIncarnation() string
}

// repeat says whether a unary call may be carried out again when the pipe broke
// and nobody knows whether the agent has done it.
type repeat bool

const (
	once   repeat = false
	freely repeat = true
)

// ask sends one unary call to the sandbox's agent.
func ask[P comparable, R interface{ GetResponse() P }](
	ctx context.Context, s *Server, req target, own *sandboxv1.AccessPolicy, r repeat,
	send func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (R, error),
) (P, error) {
	var none P
	key := keyOf(ctx, req.GetSandboxId())
	retry := agentconn.RetryWindow{Length: s.cfg.Timing.Reattach}
	up := ctx
	if r == once {
		up = metadata.AppendToOutgoingContext(ctx, agentconn.CallIDKey, newID(""))
	}
	incarnation := req.GetExpectedIncarnation()
	replays, unknown := false, false
	for {
		reply, err := func() (P, error) {
			t, err := s.reach(ctx, key, incarnation)
			if err != nil {
				return none, err
			}
			defer t.Release()
			if r == once {
				// Another incarnation does not know what the first one did.
				incarnation, replays = t.Incarnation, t.Deduplicates
			}
			c, err := s.policy.Confine(t.Policies, own)
			if err != nil {
				return none, err
			}
			envelope, err := send(up, t.Agent, c, s.limits)
			if err == nil && envelope.GetResponse() == none {
				err = fault.Misbehaved("a reply without its message")
			}
			if err != nil {
				if err = agentconn.Error(ctx, err); fault.IsMisbehaved(err) {
					t.Cut()
				}
				return none, err
			}
			return envelope.GetResponse(), nil
		}()
		if err == nil {
			return reply, nil
		}
		sent := errors.Is(err, agentconn.ErrBroken)
		unknown = r == once && (unknown || sent)
		if s.isStopping() || (sent && r == once && !replays) || !retry.Wait(ctx, err) {
			err = s.broken(ctx, err)
			if unknown && (agentconn.IsTransient(err) || s.isStopping()) {
				err = fault.OutcomeUnknown(err)
			}
			return none, err
		}
	}
}
