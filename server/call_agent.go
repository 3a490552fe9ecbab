package server

import (
	"context"
	"errors"

	"google.golang.org/grpc/metadata"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/fault"
)

// sandboxRequest is a request for one sandbox.
type sandboxRequest interface {
	GetSandboxId() string
	GetExpectedIncarnation() string
}

// semantics is whether a unary call may be sent again after the connection broke
// and its outcome is unknown.
type semantics bool

const (
	atMostOnce semantics = false
	idempotent semantics = true
)

// callAgent sends one unary call to the sandbox's agent, and retries it while the
// retry window is open. own is the call's access policy, or nil.
func callAgent[P comparable, R interface{ GetResponse() P }](
	ctx context.Context, s *Server, req sandboxRequest, own *sandboxv1.AccessPolicy, sem semantics,
	send func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (R, error),
) (P, error) {
	var none P
	key := keyOf(ctx, req.GetSandboxId())
	retry := agentconn.RetryWindow{Length: s.cfg.Timing.Reattach}
	up := ctx
	if sem == atMostOnce {
		up = metadata.AppendToOutgoingContext(ctx, agentconn.CallIDKey, newID(""))
	}
	incarnation := req.GetExpectedIncarnation()
	deduplicates, unknown := false, false
	for {
		reply, err := func() (P, error) {
			c, err := s.acquire(ctx, key, incarnation)
			if err != nil {
				return none, err
			}
			defer c.Release()
			if sem == atMostOnce {
				// Another incarnation does not know what the first one did.
				incarnation, deduplicates = c.Incarnation, c.Deduplicates
			}
			confinement, err := s.policy.Confine(c.Policies, own)
			if err != nil {
				return none, err
			}
			envelope, err := send(up, c.Agent, confinement, s.limits)
			if err == nil && envelope.GetResponse() == none {
				err = fault.Misbehaved("a reply without its message")
			}
			if err != nil {
				return none, c.Error(ctx, err)
			}
			return envelope.GetResponse(), nil
		}()
		if err == nil {
			return reply, nil
		}
		sent := errors.Is(err, agentconn.ErrBroken)
		unknown = sem == atMostOnce && (unknown || sent)
		if s.isStopping() || (sent && sem == atMostOnce && !deduplicates) || !retry.Wait(ctx, err) {
			err = s.finalError(ctx, err)
			if unknown && (agentconn.IsTransient(err) || s.isStopping()) {
				err = fault.OutcomeUnknown(err)
			}
			return none, err
		}
	}
}
