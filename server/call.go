package server

import (
	"context"
	"regexp"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/fault"
)

const requestIDKey = "x-request-id"

var requestIDPattern = regexp.MustCompile(`^[a-zA-Z0-9._:/+=-]{1,128}$`)

// call is what the interceptors and handlers of one RPC share.
type call struct {
	requestID string
	start     time.Time
	principal authn.Principal
	// method is the full name, such as "/sandbox.v1.SandboxService/Execute".
	method string
	// elsewhere is true for an operator's call in another tenant.
	elsewhere bool
	// pending is the answer of an authenticator that was not in memory, or nil.
	pending *authn.Pending
	// refused is why the call is rejected, or nil.
	refused error
	audit   AuditRecord
	// begun is true once the call has its first audit record.
	begun   bool
	objects auditObjects
	// exited is the end of the command as the caller received it.
	exited atomic.Pointer[sandboxv1.Exited]
	// cause is the error for the log.
	cause *fault.Error
	// bytes may still be counted while the call ends.
	bytes atomic.Int64
	// cut ends the call's stream, even if its handler is blocked in a send.
	cut context.CancelCauseFunc
	// cancel ends the handler's context.
	cancel atomic.Pointer[context.CancelCauseFunc]
}

// begin returns the context of the call's handler.
func (c *call) begin(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	c.cancel.Store(&cancel)
	return ctx, cancel
}

// end cancels the handler's context with err.
func (c *call) end(err error) {
	if cancel := c.cancel.Load(); cancel != nil {
		(*cancel)(err)
	}
}

type callKey struct{}

// newCall begins a call. It replaces a caller's request id that is unfit for
// logs.
func newCall(ctx context.Context, method string) (*call, context.Context) {
	c := &call{start: time.Now(), principal: authn.Principal{Tenant: defaultTenant}}
	if ids := metadata.ValueFromIncomingContext(ctx, requestIDKey); len(ids) > 0 && requestIDPattern.MatchString(ids[0]) {
		c.requestID = ids[0]
	}
	if c.requestID == "" {
		c.requestID = newID("")
	}
	c.audit = AuditRecord{Time: c.start, RequestID: c.requestID, Operation: method}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil && p.Addr.Network() != "unix" {
		c.audit.Peer = p.Addr.String()
	}
	return c, context.WithValue(ctx, callKey{}, c)
}

// callOf returns the call that ctx belongs to. Every handler's context has one.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{principal: authn.Principal{Tenant: defaultTenant}}
}
