package fault

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Recovery turns a panic of a handler into an INTERNAL error of that call, and
// logs it.
type Recovery struct{ Log *slog.Logger }

// Unary is a grpc.UnaryServerInterceptor.
func (r Recovery) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	var reply any
	err := r.Report(info.FullMethod, Catch(func() (err error) {
		reply, err = handler(ctx, req)
		return err
	}))
	return reply, err
}

// Stream is a grpc.StreamServerInterceptor.
func (r Recovery) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return r.Report(info.FullMethod, Catch(func() error { return handler(srv, stream) }))
}

// Report logs the panic that err wraps, and returns the error for the caller.
// Any other error is returned unchanged. A goroutine that works for a call hands
// its panic over as the call's error.
func (r Recovery) Report(where string, err error) error {
	var p *PanicError
	if !errors.As(err, &p) {
		return err
	}
	r.Log.Error("recovered from a panic", "in", where, "panic", p.Value, "stack", string(p.Stack))
	return Internal(err)
}

// Guard calls f, which belongs to no call, and logs a panic.
func (r Recovery) Guard(where string, f func()) {
	_ = r.Report(where, Catch(func() error {
		f()
		return nil
	}))
}

// Internal returns the INTERNAL error for a failure of the agent itself.
func Internal(cause error) error {
	return New(codes.Internal, sandboxv1.ErrorReason_ERROR_REASON_INTERNAL, "the agent failed: "+cause.Error(), nil).Because(cause)
}

// CallEnded returns the status of a call whose context is done.
func CallEnded(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return New(codes.DeadlineExceeded, sandboxv1.ErrorReason_ERROR_REASON_CALL_DEADLINE_EXCEEDED, "the call's deadline ended", nil)
	}
	return New(codes.Canceled, sandboxv1.ErrorReason_ERROR_REASON_CALL_CANCELLED, "the call was cancelled", nil)
}
