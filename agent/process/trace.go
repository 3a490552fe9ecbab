package process

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/sandgate/sandgate/agent/protocol"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// traceContext is the W3C trace context of the call that starts a command. The
// agent records nothing: it only passes the context on.
type traceContext struct{ parent, state string }

// The lengths of a traceparent of version 00, and of a tracestate that every
// implementation must accept.
const (
	traceParentLen = 55
	maxTraceState  = 512
)

// traceContextOf returns the trace context of an incoming call, or an empty one.
func traceContextOf(ctx context.Context) traceContext {
	var t traceContext
	if v := metadata.ValueFromIncomingContext(ctx, protocol.TraceParentKey); len(v) == 1 && len(v[0]) == traceParentLen {
		t.parent = v[0]
	}
	if v := metadata.ValueFromIncomingContext(ctx, protocol.TraceStateKey); t.parent != "" && len(v) == 1 && len(v[0]) <= maxTraceState {
		t.state = v[0]
	}
	return t
}

// sampled returns the traceparent if its trace is recorded, else "".
func (t traceContext) sampled() string {
	// The lowest bit of the flags, the last two hexadecimal digits.
	if t.parent != "" && strings.IndexByte("13579bdf", t.parent[traceParentLen-1]) >= 0 {
		return t.parent
	}
	return ""
}

// environ returns the environment variables that carry the trace context, as
// OpenTelemetry names them. A request that sets TRACEPARENT itself keeps its own.
func (t traceContext) environ(r *sandboxv1.ExecuteRequest) map[string]string {
	if _, own := r.GetEnv()["TRACEPARENT"]; own || t.parent == "" {
		return nil
	}
	env := map[string]string{"TRACEPARENT": t.parent}
	if t.state != "" {
		env["TRACESTATE"] = t.state
	}
	return env
}

// sendTraceParent sends the trace context of the call that started c, so that the
// server can link the span of another reader to it.
func (c *command) sendTraceParent(stream grpc.ServerStream) error {
	if c.traceParent == "" {
		return nil
	}
	return stream.SetHeader(metadata.Pairs(protocol.TraceParentKey, c.traceParent))
}
