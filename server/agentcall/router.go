// Package agentcall makes calls to the agent inside a sandbox: over which connection, with
// which call context, how often, and with which error if that fails.
package agentcall

import (
	"context"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/lifetime"
	"github.com/sandgate/sandgate/server/policy"
)

// Router finds the agents of sandboxes. Make one with New.
type Router struct{ cfg Config }

// Rules are what the call contexts of agents are made of.
type Rules struct {
	Policy *policy.Policy
	Limits *agentv1.Limits
}

// Config configures a Router. All fields must be set.
type Config struct {
	Agents   *agentconn.Set
	Activity *lifetime.Activity
	Clock    *lifetime.Clock
	Expired  *lifetime.Tombstones
	// Reattach is how long a call is retried after its connection broke.
	Reattach time.Duration
	// Rules returns those in force.
	Rules func() Rules
	// Trusted returns the certificate authority in PEM that the commands of a sandbox
	// must trust, nil if there is none.
	Trusted func(*agentconn.Conn) ([]byte, error)
	// Stopping reports whether the server stops. Calls are not retried then, and fail
	// with fault.ErrShuttingDown.
	Stopping func() bool
}

// New returns a Router.
func New(c Config) *Router { return &Router{c} }

// Retry returns a retry window for one call.
func (r *Router) Retry() agentconn.RetryWindow { return agentconn.RetryWindow{Length: r.cfg.Reattach} }

// Stopping reports whether the server stops.
func (r *Router) Stopping() bool { return r.cfg.Stopping() }

// WithCallContext returns the context of one call to an agent, and the access
// policies that the call must pass. The request may have an access policy of its
// own.
func (r *Router) WithCallContext(ctx context.Context, c *agentconn.Conn, req any) (context.Context, *agentv1.Confinement, error) {
	var own *sandboxv1.AccessPolicy
	if with, ok := req.(interface {
		GetAccess() *sandboxv1.AccessPolicy
	}); ok {
		own = with.GetAccess()
	}
	rules := r.cfg.Rules()
	confinement, err := rules.Policy.Confine(c.Policies, own)
	if err != nil {
		return nil, nil, err
	}
	call := &agentv1.CallContext{Confinement: confinement, Limits: rules.Limits}
	if _, ok := req.(*sandboxv1.ExecuteRequest); ok {
		if call.EgressAuthority, err = r.cfg.Trusted(c); err != nil {
			return nil, nil, err
		}
	}
	if inspects(ctx) {
		ctx = metadata.AppendToOutgoingContext(ctx, protocol.InspectionKey, "1")
	}
	ctx, err = protocol.WithCallContext(ctx, call)
	return ctx, confinement, err
}
