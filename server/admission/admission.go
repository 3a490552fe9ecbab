// Package admission decides which calls a server serves: it bounds what callers may do
// before they are authenticated, checks credentials and roles, and ends calls whose
// credentials end.
package admission

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/tap"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/limit"
	"github.com/sandgate/sandgate/server/quota"
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

// Gate admits calls. Make one with New.
type Gate struct {
	// authenticator is nil if every caller is anonymous.
	authenticator authn.Authenticator
	operation     func(method string) string
	conns         *connLimiter
	places        *limit.Shared // of the connections of authenticated callers
	running       *running
	refusals      *refusals
	requests      *quota.Requests
}

// New returns the gate of a server. A nil authenticator lets every caller in, as a user
// of the default tenant. operation returns the name of a method in records.
// requests bounds what calls hold whose callers authenticate, and conns the number of their
// connections.
func New(a authn.Authenticator, operation func(method string) string, requests *quota.Requests, conns int) *Gate {
	return &Gate{
		authenticator: a, operation: operation, conns: newConnLimiter(), running: newRunning(), refusals: newRefusals(), requests: requests,
		places: limit.NewShared(conns, true),
	}
}

// Options returns the options of a gRPC server behind the gate. The gate decides about
// calls in two steps: Admit begins them, and Refusal, in an interceptor, rejects those
// that the caller may not make.
func (g *Gate) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.InTapHandle(g.Admit), grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams), grpc.ConnectionTimeout(handshakeTimeout),
	}
}

// Listener returns l with bounds on the connections of callers who are not
// authenticated yet.
func (g *Gate) Listener(l net.Listener) net.Listener {
	if g.authenticator == nil {
		return l
	}
	return g.conns.listener(l)
}

// Admit authenticates a call by its headers and returns a context that carries
// the call. gRPC calls it before the call has a stream.
//
// The interceptors reject a call without valid credentials. They run before its
// message is read, so that it is recorded like any other call. gRPC would reject it here if Admit returned an error, but would never stop
// the timer of its deadline, which the caller chooses.
func (g *Gate) Admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	c, ctx := call.New(ctx, g.operation(info.FullMethodName))
	ctx, c.Cut = context.WithCancelCause(ctx)
	c.Unread = connOf(ctx).receives().Pending()
	if call.IsHealth(info.FullMethodName) {
		if g.authenticator != nil {
			c.Principal, c.Refused = authn.Principal{}, connOf(ctx).admitHealth(ctx)
		}
		return ctx, nil
	}
	if g.authenticator == nil {
		c.Principal, c.Refused = authorize(ctx, info.FullMethodName, c.Principal)
		return ctx, nil
	}
	p, err := g.authenticator.Authenticate(ctx)
	if !errors.As(err, &c.Pending) {
		g.conclude(ctx, c, info.FullMethodName, p, err)
	}
	return ctx, nil
}

// conclude admits or refuses a call by the answer of the authenticator.
func (g *Gate) conclude(ctx context.Context, c *call.Call, method string, p authn.Principal, err error) {
	conn := connOf(ctx)
	if c.Principal, c.Refused = p, g.publicError(err); err != nil {
		conn.count()
		return
	}
	tooMany := conn.authenticated(p.Tenant, g.places)
	if c.Principal, c.Refused = authorize(ctx, method, p); c.Refused == nil {
		c.Refused = tooMany
	}
	if c.Elsewhere = c.Principal.Tenant != p.Tenant; c.Refused == nil {
		g.running.add(c, func() error { return g.reauthenticate(ctx, p) })
	}
}

// Refusal returns why the call is rejected, or nil. It waits for the
// authenticator if that did not answer from memory.
func (g *Gate) Refusal(ctx context.Context) error {
	c := call.Of(ctx)
	if c.Pending != nil {
		p, err := c.Pending.Wait(ctx)
		g.conclude(ctx, c, c.Method, p, err)
	}
	return c.Refused
}

// publicError returns the error for the caller of an authenticator's error.
func (g *Gate) publicError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, authn.ErrNoCredentials):
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID,
			"this server requires credentials (%s); set SANDGATE_TOKEN or a client certificate", g.authenticator.Name())
	case errors.Is(err, authn.ErrExpired):
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID,
			"the credentials have expired; get new ones").WithCause(err)
	case errors.Is(err, authn.ErrRevoked):
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID,
			"the credentials were revoked; get new ones").WithCause(err)
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

// Caller returns the principal of a call, which is empty before authentication.
func (g *Gate) Caller(c *call.Call) authn.Principal {
	if g.Anonymous(c) {
		return authn.Principal{}
	}
	return c.Principal
}

// Anonymous reports whether the gate checks credentials and the call has none that are
// valid.
func (g *Gate) Anonymous(c *call.Call) bool { return g.authenticator != nil && c.Principal.Name == "" }

// RecordRefusal reports whether an anonymous call gets a log line and an audit record,
// and how many before it got none.
func (g *Gate) RecordRefusal() (suppressed int64, ok bool) { return g.refusals.take() }

// Ended must be called when a call has ended.
func (g *Gate) Ended(c *call.Call) {
	g.running.remove(c)
	c.Release()
}

// Recheck ends the running calls whose credentials are not valid any more.
func (g *Gate) Recheck() { g.running.check() }

// Others reports whether a tenant other than this one has a call running, or had one
// within the last second.
func (g *Gate) Others(tenant string) bool { return g.running.others(tenant) }
