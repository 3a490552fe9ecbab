package admission

import (
	"context"
	"net"

	"google.golang.org/grpc/metadata"

	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/call"
)

// Vouch begins a call of a principal that was authenticated by another protocol, as
// Admit does for calls from the network. The peer is that of ctx.
func (g *Gate) Vouch(ctx context.Context, method string, p authn.Principal) (context.Context, context.CancelCauseFunc) {
	// What a caller sent as metadata does not belong to this call.
	ctx = metadata.NewIncomingContext(ctx, nil)
	c, ctx := call.New(ctx, g.operation(method))
	c.InProcess = true
	ctx, c.Cut = context.WithCancelCause(ctx)
	c.Principal, c.Refused = authorize(ctx, method, p)
	return ctx, c.Cut
}

// Bound returns l with the bounds of Listener, whether or not callers of the server
// authenticate. Accepted and Rejected tell connections apart.
func (g *Gate) Bound(l net.Listener) net.Listener { return g.conns.listener(l) }

// Accepted lifts the bounds of the connection that is the peer of ctx: a request on it
// had valid credentials.
func (g *Gate) Accepted(ctx context.Context) { _ = connOf(ctx).authenticated("", nil) }

// Rejected counts a request without them.
func (g *Gate) Rejected(ctx context.Context) { connOf(ctx).count() }
