package server

import (
	"context"
	"errors"

	"google.golang.org/grpc/metadata"

	"github.com/sandgate/sandgate/agent/protocol"
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
// retry window is open.
func callAgent[R any](
	ctx context.Context, s *Server, req sandboxRequest, sem semantics, send func(context.Context, agent) (*R, error),
) (*R, error) {
	key := keyOf(ctx, req.GetSandboxId())
	retry := agentconn.RetryWindow{Length: s.cfg.Timing.Reattach}
	base := ctx
	if sem == atMostOnce {
		base = metadata.AppendToOutgoingContext(ctx, protocol.CallIDKey, newID(""))
	}
	incarnation := req.GetExpectedIncarnation()
	deduplicates, unknown := false, false
	for {
		reply, err := func() (*R, error) {
			c, err := s.acquire(ctx, key, incarnation)
			if err != nil {
				return nil, err
			}
			defer c.Release()
			if sem == atMostOnce {
				// Another incarnation does not know what the first one did.
				incarnation, deduplicates = c.Incarnation, c.Deduplicates
			}
			up, _, err := s.withCallContext(base, c, req)
			if err != nil {
				return nil, err
			}
			reply, err := send(up, c.Agent)
			if r, ok := any(reply).(interface{ GetInfo() *sandboxv1.FileInfo }); ok && err == nil && r.GetInfo() == nil {
				err = fault.Misbehaved("a reply without the file's info")
			}
			if err != nil {
				return nil, c.Error(ctx, err)
			}
			return reply, nil
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
			return nil, err
		}
	}
}

// withCallContext returns the context of one call to an agent, and the access
// policies that the call must pass. The request may have an access policy of its
// own.
func (s *Server) withCallContext(ctx context.Context, c *agentconn.Conn, req any) (context.Context, *agentv1.Confinement, error) {
	var own *sandboxv1.AccessPolicy
	if r, ok := req.(interface {
		GetAccess() *sandboxv1.AccessPolicy
	}); ok {
		own = r.GetAccess()
	}
	rules := s.rules()
	confinement, err := rules.policy.Confine(c.Policies, own)
	if err != nil {
		return nil, nil, err
	}
	call := &agentv1.CallContext{Confinement: confinement, Limits: rules.forAgent}
	if _, ok := req.(*sandboxv1.ExecuteRequest); ok {
		if call.EgressAuthority, err = s.trusted(c); err != nil {
			return nil, nil, err
		}
	}
	ctx, err = protocol.WithCallContext(ctx, call)
	return ctx, confinement, err
}
