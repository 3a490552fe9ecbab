package agentcall

import (
	"context"
	"errors"

	"google.golang.org/grpc/metadata"

	"github.com/sandgate/sandgate/agent/protocol"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/names"
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
	ctx context.Context, r *Router, req sandboxRequest, sem semantics, send func(context.Context, agent) (*R, error),
) (*R, error) {
	key := KeyOf(ctx, req.GetSandboxId())
	retry := r.Retry()
	base := ctx
	if sem == atMostOnce {
		base = metadata.AppendToOutgoingContext(ctx, protocol.CallIDKey, names.NewID(""))
	}
	incarnation := req.GetExpectedIncarnation()
	deduplicates, unknown := false, false
	for {
		reply, err := func() (*R, error) {
			c, err := r.Acquire(ctx, key, incarnation)
			if err != nil {
				return nil, err
			}
			defer Release(ctx, c)
			if sem == atMostOnce {
				// Another incarnation does not know what the first one did.
				incarnation, deduplicates = c.Incarnation, c.Deduplicates
			}
			up, _, err := r.WithCallContext(base, c, req)
			if err != nil {
				return nil, err
			}
			reply, err := send(up, c.Agent)
			if with, ok := any(reply).(interface{ GetInfo() *sandboxv1.FileInfo }); ok && err == nil && with.GetInfo() == nil {
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
		if r.cfg.Stopping() || (sent && sem == atMostOnce && !deduplicates) || !retry.Wait(ctx, err) {
			err = r.FinalError(ctx, err)
			if unknown && (agentconn.IsTransient(err) || r.cfg.Stopping()) {
				err = fault.OutcomeUnknown(err)
			}
			return nil, err
		}
	}
}
