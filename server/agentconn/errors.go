package agentconn

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
)

// ErrBroken is wrapped by errors of calls whose connection broke. The outcome of
// such a call is unknown.
var ErrBroken = errors.New("the connection to the sandbox's agent broke")

// CallerError is an error of the stream to the caller. Error never takes it for
// one of the agent.
type CallerError struct{ Err error }

// Error implements error.
func (e *CallerError) Error() string { return "send to the caller: " + e.Err.Error() }

// Unwrap returns context.Canceled too: the caller disconnected.
func (e *CallerError) Unwrap() []error { return []error{e.Err, context.Canceled} }

// Error turns the error of a call to an agent into a fault.Error, an error that
// wraps ErrBroken, a CallerError, or the cause of ctx. It accepts an agent's
// status only with an ErrorInfo whose reason an agent may give.
func Error(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var caller *CallerError
	if errors.As(err, &caller) {
		return caller
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var own *fault.Error
	if errors.As(err, &own) {
		return own
	}
	if errors.Is(err, ErrBroken) {
		return err
	}
	st, ok := status.FromError(err)
	if !ok {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	if f := fault.FromAgent(st); f != nil {
		return f
	}
	switch st.Code() {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		// gRPC reports a lost connection by these.
		return fmt.Errorf("%w: %s", ErrBroken, st.Message())
	case codes.Unimplemented:
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_FEATURE_UNSUPPORTED,
			"this sandbox's agent is too old for the call").With("feature", "agent").WithCause(err)
	default:
		return fault.Misbehaved("an error without a reason: %s: %s", st.Code(), fault.Bounded(st.Message()))
	}
}

// Error is the function Error. It cuts the connection if the agent misbehaved.
func (c *Conn) Error(ctx context.Context, err error) error {
	err = Error(ctx, err)
	if fault.IsMisbehaved(err) {
		c.Cut()
	}
	return err
}

// IsTransient reports whether another attempt may succeed.
func IsTransient(err error) bool {
	if errors.Is(err, ErrBroken) || errors.Is(err, providers.ErrUnavailable) {
		return true
	}
	var f *fault.Error
	return errors.As(err, &f) && f.Reason == sandboxv1.ErrorReason_ERROR_REASON_AGENT_UNAVAILABLE
}
