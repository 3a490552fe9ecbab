// Package protocol has what server and agent share of sandbox.agent.v1 beside the
// generated code: the version, and the metadata of calls.
package protocol

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// Minor is the minor version of the protocol. Each side serves peers one minor
// apart: older agents because sandboxes outlive a server's upgrade, newer ones
// because during an upgrade other replicas are newer.
const Minor = 1

// CallIDKey is the metadata key of a unary call that must run at most once. Its
// value is an id that the server chose. An agent with CallIDCapability answers a
// repeated call as it did the first time.
const (
	CallIDKey        = "sandgate-call-id"
	CallIDCapability = "call-id"
)

// CallContextKey is the metadata key of an encoded CallContext.
const CallContextKey = "sandgate-call-context-bin"

// InspectionKey is the metadata key of a call that is no activity of its sandbox, such as
// that of a caller who may only read. Its value has no meaning.
const InspectionKey = "sandgate-inspection"

// Inspects reports whether an incoming call is no activity.
func Inspects(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, InspectionKey)) > 0
}

// TraceParentKey and TraceStateKey are the metadata keys of a call's W3C trace
// context. An Execute may carry them. The agent's answer to an Execute or Attach
// has that of the call that started the command, if it is sampled.
const (
	TraceParentKey = "traceparent"
	TraceStateKey  = "tracestate"
)

const (
	// MaxPolicy bounds one encoded access policy, in bytes.
	MaxPolicy = 64 << 10
	// MaxCallContext bounds an encoded CallContext, in bytes: the policies of
	// server, template, sandbox and call, and the limits.
	MaxCallContext = 4*MaxPolicy + 4<<10
	// MaxHeaderList bounds all metadata of a call, in bytes. Base64 makes a
	// CallContext a third larger.
	MaxHeaderList = MaxCallContext/3*4 + 16<<10
)

// MaxMessage is the largest limit of a caller's message, in bytes.
const MaxMessage = 16 << 20

// Received returns the size of messages that server and agent receive, in bytes, where
// a caller's message may have limit. The rest is for what the server adds to it, and for
// an error with a reason to those who send a little more. gRPC rejects a larger message
// by its length, before it is read, and without a reason.
func Received(limit int) int { return limit + limit/4 }

// WithCallContext returns the context of a call to an agent. It must be used once
// for each call.
func WithCallContext(ctx context.Context, c *agentv1.CallContext) (context.Context, error) {
	raw, err := proto.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode the call context: %w", err)
	}
	return metadata.AppendToOutgoingContext(ctx, CallContextKey, string(raw)), nil
}

// CallContext returns the call context of an incoming call. It returns an error,
// and never an empty context, if the call has none, or a malformed one.
func CallContext(ctx context.Context) (*agentv1.CallContext, error) {
	values := metadata.ValueFromIncomingContext(ctx, CallContextKey)
	switch {
	case len(values) == 0:
		return nil, errors.New("required metadata is missing")
	case len(values) > 1:
		return nil, errors.New("must occur once")
	case len(values[0]) > MaxCallContext:
		return nil, fmt.Errorf("must be at most %d bytes", MaxCallContext)
	}
	c := new(agentv1.CallContext)
	if err := proto.Unmarshal([]byte(values[0]), c); err != nil {
		return nil, errors.New("is not an encoded CallContext")
	}
	return c, nil
}

// Unconfined gives each call of a connection an empty CallContext, unless the call
// has one. It is for connections to an agent with no server between.
func Unconfined() grpc.DialOption { return grpc.WithPerRPCCredentials(unconfined{}) }

// unconfined adds its metadata as credentials do, to unary calls and streams.
type unconfined struct{}

func (unconfined) RequireTransportSecurity() bool { return false }

func (unconfined) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(CallContextKey)) > 0 {
		return nil, nil
	}
	return map[string]string{CallContextKey: ""}, nil
}
