package agent

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/grpc"

	"github.com/sandgate/sandgate/agent/fault"
)

// recovery turns a panic in a handler into an INTERNAL error of that call.
type recovery struct{ log *slog.Logger }

// unary is a grpc.UnaryServerInterceptor.
func (r recovery) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	var reply any
	err := r.report(info.FullMethod, fault.Catch(func() (err error) {
		reply, err = handler(ctx, req)
		return err
	}))
	return reply, err
}

// stream is a grpc.StreamServerInterceptor.
func (r recovery) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return r.report(info.FullMethod, fault.Catch(func() error { return handler(srv, stream) }))
}

// report logs a panic that err comes from and returns what the caller sees.
// Panics of goroutines that work for a call arrive here as its error.
func (r recovery) report(what string, err error) error {
	var p *fault.PanicError
	if !errors.As(err, &p) {
		return err
	}
	r.log.Error("recovered from a panic", "in", what, "panic", p.Value, "stack", string(p.Stack))
	return internal(err)
}

// guard calls f, which runs apart from any call, and logs a panic.
func (r recovery) guard(what string, f func()) {
	_ = r.report(what, fault.Catch(func() error {
		f()
		return nil
	}))
}
