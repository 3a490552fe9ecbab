package server

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/tap"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/fault"
)

// maxHeaderBytes bounds the header list of a call. Credentials are the largest
// part of it.
const maxHeaderBytes = 16 << 10

// maxStreams bounds the running calls of one connection: 1 000 commands, and as
// many short calls.
const maxStreams = 2_048

// handshakeTimeout bounds the time from accepting a connection to the end of
// its TLS and HTTP/2 handshakes.
const handshakeTimeout = 10 * time.Second

// maxHealthCalls bounds the running health calls of one connection, which need
// no credentials.
const maxHealthCalls = 8

// admit authenticates a call by its headers and returns a context that carries
// the call. gRPC calls it before the call has a stream.
//
// The interceptors reject a call without valid credentials. They run before its
// message is read (beforeRead), so that it is recorded like any other call.
// gRPC would reject it here if admit returned an error, but would never stop
// the timer of its deadline, which the caller chooses.
func (s *Server) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	c, ctx := newCall(ctx, s.operation(info.FullMethodName))
	ctx, c.cut = context.WithCancelCause(ctx)
	if isHealth(info.FullMethodName) {
		if s.cfg.Authenticator != nil {
			c.principal, c.refused = authn.Principal{}, connOf(ctx).admitHealth(ctx)
		}
		return ctx, nil
	}
	if s.cfg.Authenticator == nil {
		c.principal, c.refused = authorize(ctx, info.FullMethodName, c.principal)
		return ctx, nil
	}
	p, err := s.cfg.Authenticator.Authenticate(ctx)
	if !errors.As(err, &c.pending) {
		s.conclude(ctx, c, info.FullMethodName, p, err)
	}
	return ctx, nil
}

// conclude admits or refuses a call by the answer of the authenticator.
func (s *Server) conclude(ctx context.Context, c *call, method string, p authn.Principal, err error) {
	conn := connOf(ctx)
	if c.principal, c.refused = p, s.refusal(err); err != nil {
		conn.count()
		return
	}
	conn.authenticated()
	c.principal, c.refused = authorize(ctx, method, p)
	if c.elsewhere = c.principal.Tenant != p.Tenant; c.refused == nil {
		s.running.add(c, func() error { return s.reauthenticate(ctx, p) })
	}
}

// refusalOf returns why the call is rejected, or nil. It waits for the
// authenticator if that did not answer from memory.
func (s *Server) refusalOf(ctx context.Context) error {
	c := callOf(ctx)
	if c.pending != nil {
		p, err := c.pending.Wait(ctx)
		s.conclude(ctx, c, c.method, p, err)
	}
	return c.refused
}

// unknownOperation is the operation of all methods that the server does not
// have.
const unknownOperation = "unknown"

// operation returns the name of a method for logs and metrics. It is
// unknownOperation for a method that a caller invented.
func (s *Server) operation(method string) string {
	service, name := path.Split(strings.TrimPrefix(method, "/"))
	if info, ok := s.services[strings.TrimSuffix(service, "/")]; ok {
		for _, m := range info.Methods {
			if m.Name == name {
				return m.Name
			}
		}
	}
	return unknownOperation
}

func isHealth(method string) bool {
	return strings.HasPrefix(method, "/"+healthv1.Health_ServiceDesc.ServiceName+"/")
}

// refusal returns the error for the caller of an authenticator's error.
func (s *Server) refusal(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, authn.ErrNoCredentials):
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID,
			"this server requires credentials (%s); set SANDGATE_TOKEN or a client certificate", s.cfg.Authenticator.Name())
	case errors.Is(err, authn.ErrExpired):
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID,
			"the credentials have expired; get new ones").WithCause(err)
	case errors.Is(err, authn.ErrUnknownCredentials):
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID,
			"the credentials are not known to this server").WithCause(err)
	case errors.Is(err, authn.ErrForbidden):
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_CALL_FORBIDDEN,
			"the credentials are valid, but this server has no tenant or role for them; ask its operator").
			With("field", "authorization").WithCause(err)
	case errors.Is(err, authn.ErrUnavailable):
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_AUTHENTICATION_UNAVAILABLE,
			"the server cannot check the credentials now, because their issuer does not answer; try again").WithCause(err)
	default:
		return fmt.Errorf("authentication: %w", err)
	}
}

// beforeRead returns desc with handlers that run the interceptors before the
// message of a unary call is read. A generated handler decodes the message
// first and then calls the interceptors. An unauthenticated caller could then have large
// messages read and decoded, and a message that cannot be decoded would leave
// no log line, audit record or metric. The wrapped handler runs the
// interceptors with a handler that calls the generated one, whose decode
// function is Server.receive. Streams need no rewriting: their handlers call
// RecvMsg.
func (s *Server) beforeRead(desc grpc.ServiceDesc) *grpc.ServiceDesc {
	methods := desc.Methods
	desc.Methods = make([]grpc.MethodDesc, len(methods))
	for i, m := range methods {
		full := "/" + desc.ServiceName + "/" + m.MethodName
		desc.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: func(
			srv any, ctx context.Context, dec func(any) error, in grpc.UnaryServerInterceptor,
		) (any, error) {
			return in(ctx, nil, &grpc.UnaryServerInfo{Server: srv, FullMethod: full}, func(ctx context.Context, _ any) (any, error) {
				return m.Handler(srv, ctx, func(msg any) error { return s.receive(ctx, dec, msg) }, nil)
			})
		}}
	}
	return &desc
}

// pendingCalls counts running calls.
type pendingCalls struct{ n atomic.Int32 }

// enter counts a call until ctx ends, and returns false beyond limit.
func (p *pendingCalls) enter(ctx context.Context, limit int32) bool {
	if p.n.Add(1) > limit {
		p.n.Add(-1)
		return false
	}
	context.AfterFunc(ctx, func() { p.n.Add(-1) })
	return true
}
