// Package call holds what the parts of the server share about one RPC: who calls, under
// which id, what its audit records say, and how it can be ended.
package call

import (
	"context"
	"regexp"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/names"
)

// RequestIDKey is the metadata with a call's request id, in both directions.
const RequestIDKey = "x-request-id"

// DefaultTenant is the tenant of callers without authentication.
const DefaultTenant = "default"

var requestIDPattern = regexp.MustCompile(`^[a-zA-Z0-9._:/+=-]{1,128}$`)

// Call is what the interceptors and handlers of one RPC share.
type Call struct {
	RequestID string
	Start     time.Time
	Principal authn.Principal
	// Method is the full name, such as "/sandbox.v1.SandboxService/Execute".
	Method string
	// Elsewhere is true for an operator's call in another tenant.
	Elsewhere bool
	// Pending is the answer of an authenticator that was not in memory, or nil.
	Pending *authn.Pending
	// Refused is why the call is rejected, or nil.
	Refused error
	Audit   audit.Record
	// Begun is true once the call has its first audit record.
	Begun   bool
	Objects audit.Objects
	// Pulled is true if the sandbox that it created waited for its image.
	Pulled bool
	// Exited is the end of the command as the caller received it.
	Exited atomic.Pointer[sandboxv1.Exited]
	// Cause is the error for the log.
	Cause *fault.Error
	// Bytes may still be counted while the call ends.
	Bytes atomic.Int64
	// Unread is what the caller's connection had received, and no call had taken, when
	// this one began.
	Unread int64
	// InProcess is true for a call that came by another protocol: its messages do not
	// arrive on the connection of its peer.
	InProcess bool
	// OnRelease, if set, is called when the server no longer holds the call's request. Only
	// its first call has an effect.
	OnRelease func()
	// Cut ends the call's stream, even if its handler is blocked in a send.
	Cut context.CancelCauseFunc
	// cancel ends the handler's context.
	cancel atomic.Pointer[context.CancelCauseFunc]
}

// Handle returns the context of the call's handler.
func (c *Call) Handle(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	c.cancel.Store(&cancel)
	return ctx, cancel
}

// Release must be called when nothing refers to the call's request any more, at the
// latest when the call has ended.
func (c *Call) Release() {
	if c.OnRelease != nil {
		c.OnRelease()
	}
}

// End cancels the handler's context with err.
func (c *Call) End(err error) {
	if cancel := c.cancel.Load(); cancel != nil {
		(*cancel)(err)
	}
}

type callKey struct{}

// New begins a call. It replaces a caller's request id that is unfit for
// logs.
func New(ctx context.Context, method string) (*Call, context.Context) {
	c := &Call{Start: time.Now(), Principal: authn.Principal{Tenant: DefaultTenant}}
	if ids := metadata.ValueFromIncomingContext(ctx, RequestIDKey); len(ids) > 0 && requestIDPattern.MatchString(ids[0]) {
		c.RequestID = ids[0]
	}
	if c.RequestID == "" {
		c.RequestID = names.NewID("")
	}
	c.Audit = audit.Record{Time: c.Start, RequestID: c.RequestID, Operation: method}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil && p.Addr.Network() != "unix" {
		c.Audit.Peer = p.Addr.String()
	}
	return c, context.WithValue(ctx, callKey{}, c)
}

// Of returns the call that ctx belongs to. Every handler's context has one. Elsewhere
// it returns an anonymous call without a request id.
func Of(ctx context.Context) *Call {
	if c, ok := ctx.Value(callKey{}).(*Call); ok {
		return c
	}
	return &Call{Principal: authn.Principal{Tenant: DefaultTenant}}
}
