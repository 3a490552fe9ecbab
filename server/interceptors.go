package server

import (
	"context"
	"maps"

	middleware "github.com/grpc-ecosystem/go-grpc-middleware/v2"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/quota"
)

// chains returns the interceptors. They run after Gate.Admit has authenticated
// the call, unless that takes longer, and before its first message is read. Their order is, from the outside:
//
//  1. outer: request id, log line, audit record
//  2. metrics
//  3. status: turns errors into statuses, so that log, audit record, metrics and
//     caller see the same outcome
//  4. shutdown: rejects new calls while the server stops, and calls that the caller
//     may not make. It waits for an authenticator that asks another server
//  5. recovery: the innermost, so that a panic passes the others as an error
func (s *Server) chains() ([]grpc.UnaryServerInterceptor, []grpc.StreamServerInterceptor) {
	countUnary, countStream := s.metrics.Interceptors()
	unary := []grpc.UnaryServerInterceptor{s.outerUnary, countUnary}
	stream := []grpc.StreamServerInterceptor{s.outerStream, countStream}
	caught := recovery.WithRecoveryHandlerContext(func(_ context.Context, p any) error { return fault.Panic(p) })
	unary = append(unary, s.statusUnary, s.shutdownUnary, recovery.UnaryServerInterceptor(caught))
	stream = append(stream, s.statusStream, s.shutdownStream, recovery.StreamServerInterceptor(caught))
	return unary, stream
}

func (s *Server) outerUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	c := call.Of(ctx)
	c.Method = info.FullMethod
	// It fails only after the headers were sent.
	_ = grpc.SetHeader(ctx, metadata.Pairs(call.RequestIDKey, c.RequestID))
	ctx, cancel := c.Handle(ctx)
	defer cancel(nil)
	resp, err := handler(ctx, req)
	s.finish(ctx, c, resp, err)
	return resp, err
}

func (s *Server) outerStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c := call.Of(stream.Context())
	c.Method = info.FullMethod
	_ = stream.SetHeader(metadata.Pairs(call.RequestIDKey, c.RequestID))
	wrapped := middleware.WrapServerStream(stream)
	ctx, cancel := c.Handle(stream.Context())
	defer cancel(nil)
	wrapped.WrappedContext = ctx
	err := handler(srv, &callStream{WrappedServerStream: wrapped, s: s, single: !info.IsClientStream})
	s.finish(ctx, c, nil, err)
	return err
}

// callStream is a stream whose context carries the call. Server.receive reads its
// messages.
type callStream struct {
	*middleware.WrappedServerStream
	s *Server
	// single is true if the caller sends one message.
	single bool
}

func (e *callStream) RecvMsg(m any) error {
	if e.single {
		return e.s.receive(e.Context(), e.ServerStream.RecvMsg, m)
	}
	fr, raw := m.(*agentconn.Frame)
	if !raw {
		fr = new(agentconn.Frame)
	}
	if err := e.next(fr); err != nil {
		return err
	}
	if raw {
		e.s.gate.Took(e.Context(), fr.Data.Len())
		return nil
	}
	defer fr.Free()
	return e.s.decode(e.Context(), fr, m, nil)
}

func (s *Server) statusUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if err != nil {
		return nil, s.toStatus(ctx, err)
	}
	return resp, nil
}

func (s *Server) statusStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := handler(srv, stream); err != nil {
		return s.toStatus(stream.Context(), err)
	}
	return nil
}

// toStatus turns every error into a status. It keeps the cause, which callers must
// not see, for the log.
func (s *Server) toStatus(ctx context.Context, err error) error {
	if s.isStopping() && ctx.Err() != nil {
		err = fault.ErrShuttingDown
	}
	f := fault.From(ctx, err)
	c := call.Of(ctx)
	c.Cause = f
	if c.Audit.SandboxID != "" && hasSandboxID[f.Reason] && f.Metadata["sandbox_id"] == "" {
		clone := *f
		clone.Metadata = maps.Clone(f.Metadata)
		f = clone.With("sandbox_id", c.Audit.SandboxID)
	}
	return f.Status(c.RequestID).Err()
}

// hasSandboxID lists the reasons that carry the metadata "sandbox_id".
var hasSandboxID = map[sandboxv1.ErrorReason]bool{
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_FOUND:         true,
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_EXPIRED:           true,
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_SPEC_DIFFERS:      true,
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_ACTIVE:        true,
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_REPLACED:          true,
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_START_FAILED:      true,
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_START_TIMEOUT:     true,
	sandboxv1.ErrorReason_ERROR_REASON_AGENT_UNAVAILABLE:         true,
	sandboxv1.ErrorReason_ERROR_REASON_AGENT_CANNOT_START:        true,
	sandboxv1.ErrorReason_ERROR_REASON_AGENT_VERSION_UNSUPPORTED: true,
	sandboxv1.ErrorReason_ERROR_REASON_AGENT_MISBEHAVED:          true,
}

// refusal returns why a call is rejected before its messages are read, or nil.
func (s *Server) refusal(ctx context.Context) error {
	if err := s.gate.Refusal(ctx); err != nil {
		return err
	}
	return refuseCompression(ctx)
}

func (s *Server) shutdownUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := s.refusal(ctx); err != nil {
		return nil, err
	}
	if s.isStopping() || !s.unary.TryRLock() {
		return nil, fault.ErrShuttingDown
	}
	defer s.unary.RUnlock()
	return handler(ctx, req)
}

func (s *Server) shutdownStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	err := s.refusal(stream.Context())
	var q *quota.Request
	if info.IsClientStream {
		q = s.gate.Stream(stream.Context())
	}
	if err == nil {
		err = s.serveStream(srv, stream, info, handler)
	}
	if err != nil {
		q.Dropped(agentconn.StreamWindow) // the caller may have sent so much before it learns of the end
	}
	return err
}

func (s *Server) serveStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	// Health watches end when the health server shuts down.
	if s.isStopping() && !call.IsHealth(info.FullMethod) {
		return fault.ErrShuttingDown
	}
	leave, err := s.enterStream(stream.Context(), info)
	if err != nil {
		return err
	}
	defer leave()
	return handler(srv, stream)
}
