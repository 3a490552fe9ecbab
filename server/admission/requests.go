package admission

import (
	"context"

	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/quota"
)

// messageHead is what gRPC sends before a message.
const messageHead = 5

// Expect counts a call whose only message is about to arrive, until the call's Release.
// It returns nil where callers do not authenticate, and for a health call on a pending
// connection, whose bounds suffice. A health call has no tenant: it counts for that of its
// connection, so that callers fail no health checks but their own. cut is called if the
// call must end before its message has arrived. Both errors are a *quota.Exceeded.
func (g *Gate) Expect(ctx context.Context, cut func(exceeded error)) (*quota.Request, error) {
	if g.authenticator == nil {
		return nil, nil
	}
	c, conn := call.Of(ctx), connOf(ctx)
	tenant := c.Principal.Tenant
	if call.IsHealth(c.Method) {
		if conn == nil || !conn.free.Load() {
			return nil, nil
		}
		tenant = conn.tenant
	}
	if c.InProcess {
		conn = nil
	}
	q, err := g.requests.Expect(tenant, conn.receives(), c.Unread, cut)
	if err == nil {
		c.OnRelease = q.Release
	}
	return q, err
}

// Stream counts a call on which the caller sends many messages, until the call's Release. It
// returns nil where callers do not authenticate, and for a call without a tenant: one
// without valid credentials, or to the health service, of which every call of an unknown
// method is such a call.
func (g *Gate) Stream(ctx context.Context) *quota.Request {
	c := call.Of(ctx)
	if g.authenticator == nil || g.Anonymous(c) || c.InProcess || call.IsHealth(c.Method) {
		return nil
	}
	q := g.requests.Stream(c.Principal.Tenant, connOf(ctx).receives())
	c.OnRelease = q.Release
	return q
}

// Took counts a message that a handler has received: its bytes no longer arrive.
func (g *Gate) Took(ctx context.Context, bytes int) {
	if c := connOf(ctx); c != nil {
		c.received.Take(messageHead + bytes)
	}
}

// receives returns what counts the bytes of c, or nil.
func (c *clientConn) receives() *quota.Received {
	if c == nil {
		return nil
	}
	return &c.received
}
