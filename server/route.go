package server

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/metadata"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
)

// boxOf finds the caller's sandbox of this id and notes it for the audit.
func boxOf(ctx context.Context, id string) box {
	c := callOf(ctx)
	c.audit.SandboxID = id
	return box{tenant: c.principal.Tenant, id: id, name: substrateName(c.principal.Tenant, id)}
}

// reach returns a tunnel to the sandbox, which must be released, and counts
// the call as activity.
func (s *Server) reach(ctx context.Context, b box, incarnation string) (*tunnel, error) {
	return s.reachKnown(ctx, b, incarnation, nil)
}

// reachKnown is reach for a sandbox that the provider has just told of, which
// spares asking it again.
func (s *Server) reachKnown(ctx context.Context, b box, incarnation string, known *providers.Info) (*tunnel, error) {
	t, err := s.tunnels.getKnown(ctx, b, known)
	if err != nil {
		return nil, s.explain(b, err)
	}
	if incarnation != "" && incarnation != t.incarnation {
		t.release()
		now, err := s.tunnels.lookup(ctx, b)
		switch {
		case err != nil:
			return nil, s.explain(b, err)
		case now.Incarnation == incarnation && (known == nil || known.Incarnation != incarnation):
			// The caller knows more than this server did.
			return s.reachKnown(ctx, b, incarnation, &now)
		default:
			return nil, fault.Replaced(b.id, now.Incarnation)
		}
	}
	if s.aged(*t.info.Load()) {
		// Another replica may have prolonged it meanwhile.
		fresh, err := s.tunnels.lookup(ctx, b)
		if err == nil {
			t.info.Store(&fresh)
			if s.aged(fresh) {
				err = fault.Expired(b.id, fresh.ExpireTime())
			}
		}
		if err != nil {
			t.release()
			return nil, s.explain(b, err)
		}
	}
	if err := s.activity.renew(ctx, t, time.Now()); err != nil {
		t.release()
		if end, ok := s.expired.get(b.name); ok && errors.Is(err, providers.ErrNotActive) {
			err = fault.Expired(b.id, end)
		}
		return nil, s.explain(b, err)
	}
	return t, nil
}

// explain tells a caller about a sandbox that is gone why it is.
func (s *Server) explain(b box, err error) error {
	var told *fault.Error
	if !errors.Is(err, providers.ErrNotFound) || errors.As(err, &told) {
		return err
	}
	if end, ok := s.expired.get(b.name); ok {
		return fault.Expired(b.id, end)
	}
	return fault.NotFound(b.id)
}

// mender decides whether to try again after the way to an agent broke.
type mender struct {
	window time.Duration
	until  time.Time
	delay  time.Duration
}

const (
	firstMend = 20 * time.Millisecond
	lastMend  = time.Second
)

// again waits and reports true when another try is worth it.
func (m *mender) again(ctx context.Context, err error) bool {
	if !transient(err) {
		return false
	}
	now := time.Now()
	if m.until.IsZero() {
		m.until, m.delay = now.Add(m.window), firstMend
	} else {
		m.delay = min(2*m.delay, lastMend)
	}
	if now.Add(m.delay).After(m.until) {
		return false
	}
	timer := time.NewTimer(m.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// progress begins the window anew.
func (m *mender) progress() { m.until = time.Time{} }

func transient(err error) bool {
	if errors.Is(err, errPipe) || errors.Is(err, providers.ErrUnavailable) {
		return true
	}
	var f *fault.Error
	return errors.As(err, &f) && f.Reason == sandboxv1.ErrorReason_ERROR_REASON_AGENT_UNAVAILABLE
}

// broken is what the caller is told when the way to the agent broke and could
// not be mended.
func (s *Server) broken(ctx context.Context, err error) error {
	switch {
	case s.isStopping():
		return fault.ErrShuttingDown
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, errPipe):
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

// A call to be carried out once has an id, by which an agent with the
// capability knows it again and answers as it did the first time.
const (
	callIDKey        = "sandgate-call-id"
	callIDCapability = "call-id"
)

// ask sends one unary call to the sandbox's agent.
func ask[P comparable, R interface{ GetResponse() P }](
	ctx context.Context, s *Server, req target, own *sandboxv1.AccessPolicy, r repeat,
	send func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (R, error),
) (P, error) {
	var none P
	b := boxOf(ctx, req.GetSandboxId())
	mend := mender{window: s.cfg.Timing.Reattach}
	up := ctx
	if r == once {
		up = metadata.AppendToOutgoingContext(ctx, callIDKey, newID(""))
	}
	incarnation := req.GetExpectedIncarnation()
	replays, unknown := false, false
	for {
		reply, err := func() (P, error) {
			t, err := s.reach(ctx, b, incarnation)
			if err != nil {
				return none, err
			}
			defer t.release()
			if r == once {
				// Another incarnation does not know what the first one did.
				incarnation, replays = t.incarnation, t.replays
			}
			c, err := s.policy.Confine(t.policies, own)
			if err != nil {
				return none, err
			}
			envelope, err := send(up, t.agent, c, s.limits)
			if err == nil && envelope.GetResponse() == none {
				err = fault.Misbehaved("a reply without its message")
			}
			if err != nil {
				if err = agentError(ctx, err); fault.IsMisbehaved(err) {
					t.cut()
				}
				return none, err
			}
			return envelope.GetResponse(), nil
		}()
		if err == nil {
			return reply, nil
		}
		sent := errors.Is(err, errPipe)
		unknown = r == once && (unknown || sent)
		if s.isStopping() || (sent && r == once && !replays) || !mend.again(ctx, err) {
			err = s.broken(ctx, err)
			if unknown && (transient(err) || s.isStopping()) {
				err = fault.OutcomeUnknown(err)
			}
			return none, err
		}
	}
}
