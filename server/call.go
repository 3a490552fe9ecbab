package server

import (
	"context"
	"path"
	"regexp"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
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
	audit  AuditRecord
	// begun is true once the call has its first audit record.
	begun   bool
	objects auditObjects
	// exited is how the command ended, as the caller was told.
	exited atomic.Pointer[sandboxv1.Exited]
	// cause is what the log says about an error.
	cause *fault
	// bytes may still be counted while the call ends.
	bytes atomic.Int64
}

type callKey struct{}

// newCall begins a call. A request id of the caller that is not fit for logs is
// replaced.
func newCall(ctx context.Context, method string) (*call, context.Context) {
	c := &call{start: time.Now(), method: method, principal: authn.Principal{Tenant: defaultTenant}}
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		if ids := md.Get(requestIDKey); len(ids) > 0 && requestIDPattern.MatchString(ids[0]) {
			c.requestID = ids[0]
		}
	}
	if c.requestID == "" {
		c.requestID = newID("")
	}
	c.audit = AuditRecord{Time: c.start, RequestID: c.requestID, Operation: path.Base(method)}
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
