package server

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/fault"
)

// errPipe is wrapped by errors that mean that the way to the agent broke; what
// happened to the call is then unknown.
var errPipe = errors.New("the connection to the sandbox's agent broke")

// agentError turns what a call to an agent returned into a fault, errPipe, or
// the end of ctx. An agent's status is believed only when it carries an
// ErrorInfo of ours with a reason that an agent may give; its code is then the
// table's.
func agentError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var gone *sendError
	if errors.As(err, &gone) {
		return gone
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var own *fault.Error
	if errors.As(err, &own) {
		return own
	}
	if errors.Is(err, errPipe) {
		return err
	}
	st, ok := status.FromError(err)
	if !ok {
		return fmt.Errorf("%w: %w", errPipe, err)
	}
	if f := fault.FromAgent(st); f != nil {
		return f
	}
	switch st.Code() {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		// gRPC's own words for a connection that went away.
		return fmt.Errorf("%w: %s", errPipe, st.Message())
	case codes.Unimplemented:
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_FEATURE_UNSUPPORTED,
			"this sandbox's agent is too old for the call").With("feature", "agent").WithCause(err)
	default:
		return fault.Misbehaved("an error without a reason: %s: %s", st.Code(), fault.Bounded(st.Message()))
	}
}
