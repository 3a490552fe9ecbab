package server

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	middleware "github.com/grpc-ecosystem/go-grpc-middleware/v2"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
)

// chains returns the interceptors. Their order is, from the outside:
//
//  1. edge: request id, log line, audit record
//  2. metrics, which therefore count refused calls too
//  3. status: the one place where errors become statuses, so that log, audit
//     record, metrics and caller see the same outcome
//  4. authentication, for everything but health checks
//  5. gate: refuses new calls during shutdown
//  6. begin: the audit record of the start; streams do it with their first message
//  7. recovery: the innermost, so that a panic passes the others as an error
func (s *Server) chains() ([]grpc.UnaryServerInterceptor, []grpc.StreamServerInterceptor) {
	unary := []grpc.UnaryServerInterceptor{s.edgeUnary}
	stream := []grpc.StreamServerInterceptor{s.edgeStream}
	if s.cfg.Metrics != nil {
		report := reportTo(s.cfg.Metrics)
		unary = append(unary, interceptors.UnaryServerInterceptor(report))
		stream = append(stream, interceptors.StreamServerInterceptor(report))
	}
	unary = append(unary, s.statusUnary)
	stream = append(stream, s.statusStream)
	if s.cfg.Authenticator != nil {
		private := selector.MatchFunc(func(_ context.Context, meta interceptors.CallMeta) bool {
			return meta.Service != healthv1.Health_ServiceDesc.ServiceName
		})
		unary = append(unary, selector.UnaryServerInterceptor(auth.UnaryServerInterceptor(s.authenticate), private))
		stream = append(stream, selector.StreamServerInterceptor(auth.StreamServerInterceptor(s.authenticate), private))
	}
	caught := recovery.WithRecoveryHandlerContext(func(_ context.Context, p any) error { return panicError(p) })
	unary = append(unary, s.gateUnary, s.beginUnary, recovery.UnaryServerInterceptor(caught))
	stream = append(stream, s.gateStream, recovery.StreamServerInterceptor(caught))
	return unary, stream
}

func panicError(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }

func (s *Server) edgeUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	c, ctx := newCall(ctx, info.FullMethod)
	// Only fails when the headers were sent already, which cannot be here.
	_ = grpc.SetHeader(ctx, metadata.Pairs(requestIDKey, c.requestID))
	resp, err := handler(ctx, req)
	s.finish(ctx, c, resp, err)
	return resp, err
}

func (s *Server) edgeStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c, ctx := newCall(stream.Context(), info.FullMethod)
	_ = stream.SetHeader(metadata.Pairs(requestIDKey, c.requestID))
	wrapped := middleware.WrapServerStream(stream)
	wrapped.WrappedContext = ctx
	err := handler(srv, &edge{WrappedServerStream: wrapped, s: s})
	s.finish(ctx, c, nil, err)
	return err
}

// edge is a stream with the call in its context, whose messages are received
// as Server.receive does.
type edge struct {
	*middleware.WrappedServerStream
	s *Server
}

func (e *edge) RecvMsg(m any) error {
	if _, raw := m.(*frame); raw {
		return e.ServerStream.RecvMsg(m)
	}
	if err := e.s.receive(e.ServerStream.RecvMsg, m); err != nil {
		return err
	}
	ctx := e.Context()
	return e.s.begin(ctx, callOf(ctx), m)
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

// toStatus is the only way from an error to the wire. What the caller must not
// see is kept for the log.
func (s *Server) toStatus(ctx context.Context, err error) error {
	if s.isStopping() && ctx.Err() != nil {
		err = errShuttingDown
	}
	f := fold(ctx, err)
	c := callOf(ctx)
	c.cause = f
	if c.audit.SandboxID != "" && needsSandboxID[f.reason] && f.meta["sandbox_id"] == "" {
		clone := *f
		clone.meta = map[string]string{"sandbox_id": c.audit.SandboxID}
		for k, v := range f.meta {
			clone.meta[k] = v
		}
		f = &clone
	}
	return f.status(c.requestID).Err()
}

// needsSandboxID lists the reasons that promise the metadata "sandbox_id".
var needsSandboxID = map[sandboxv1.ErrorReason]bool{
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_FOUND:    true,
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_EXPIRED:      true,
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_SPEC_DIFFERS: true,
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_ACTIVE:   true,
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_REPLACED:     true,
	sandboxv1.ErrorReason_ERROR_REASON_AGENT_UNAVAILABLE:    true,
	sandboxv1.ErrorReason_ERROR_REASON_AGENT_MISBEHAVED:     true,
}

func (s *Server) authenticate(ctx context.Context) (context.Context, error) {
	p, err := s.cfg.Authenticator.Authenticate(ctx)
	switch {
	case err == nil:
		callOf(ctx).principal = p
		return ctx, nil
	case errors.Is(err, authn.ErrNoCredentials):
		return nil, faultf(sandboxv1.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID,
			"this server asks for credentials (%s); set SANDGATE_TOKEN or a client certificate", s.cfg.Authenticator.Name())
	case errors.Is(err, authn.ErrUnknownCredentials):
		return nil, faultf(sandboxv1.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID,
			"the credentials are not known to this server").because(err)
	default:
		return nil, fmt.Errorf("authentication: %w", err)
	}
}

func (s *Server) gateUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if s.isStopping() {
		return nil, errShuttingDown
	}
	return handler(ctx, req)
}

func (s *Server) gateStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	// Health watches end when the health server shuts down.
	if s.isStopping() && !strings.HasPrefix(info.FullMethod, "/"+healthv1.Health_ServiceDesc.ServiceName+"/") {
		return errShuttingDown
	}
	return handler(srv, stream)
}
