// Package tracing makes the spans of calls, of commands and of calls to agents.
package tracing

import (
	"context"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	"github.com/sandgate/sandgate/agent/protocol"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/wire"
)

// Tracing makes the spans of calls and commands. Without a TracerProvider it only
// passes a caller's trace context on to the command.
type Tracing struct {
	provider trace.TracerProvider // nil: no spans
	tracer   trace.Tracer
}

// New returns the Tracing of a provider, which may be nil.
func New(p trace.TracerProvider) Tracing {
	t := Tracing{provider: p, tracer: tracenoop.Tracer{}}
	if p != nil {
		t.tracer = p.Tracer("github.com/sandgate/sandgate/server")
	}
	return t
}

// w3c reads and writes "traceparent" and "tracestate".
var w3c propagation.TraceContext

// Calls returns the handler that makes the spans of callers' calls.
func (t Tracing) Calls() []grpc.ServerOption {
	if t.provider == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(admittedCalls{otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(w3c), otelgrpc.WithMeterProvider(metricnoop.MeterProvider{}))})}
}

// AgentCalls returns the handler that makes the spans of calls to agents, or nil.
// It sends agents no trace context: Execute has one of its own.
func (t Tracing) AgentCalls() stats.Handler {
	if t.provider == nil {
		return nil
	}
	return recordedCalls{otelgrpc.NewClientHandler(otelgrpc.WithTracerProvider(t.provider),
		otelgrpc.WithPropagators(propagation.NewCompositeTextMapPropagator()), otelgrpc.WithMeterProvider(metricnoop.MeterProvider{}))}
}

// admittedCalls makes spans for the calls of SandboxService. A call whose credentials
// were rejected at once gets none. One whose credentials are not decided yet begins a
// trace of its own, so that a caller without valid ones cannot have it sampled.
type admittedCalls struct{ stats.Handler }

func (h admittedCalls) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	c := call.Of(ctx)
	if c.Refused != nil || c.Audit.Operation == call.UnknownOperation || !call.IsService(info.FullMethodName) {
		return ctx
	}
	if c.Pending != nil {
		md, _ := metadata.FromIncomingContext(ctx)
		md = md.Copy()
		md.Delete(protocol.TraceParentKey)
		md.Delete(protocol.TraceStateKey)
		return h.Handler.TagRPC(metadata.NewIncomingContext(ctx, md), info)
	}
	return h.Handler.TagRPC(ctx, info)
}

// recordedCalls makes spans for calls to agents on behalf of a caller whose span is
// recorded. The server's own calls, such as GetActivity, get none.
type recordedCalls struct{ stats.Handler }

func (h recordedCalls) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx
	}
	return h.Handler.TagRPC(ctx, info)
}

func (h recordedCalls) HandleRPC(ctx context.Context, s stats.RPCStats) {
	// Of a call without a span of its own, this is nothing.
	if trace.SpanFromContext(ctx).IsRecording() {
		h.Handler.HandleRPC(ctx, s)
	}
}

// StartCommand begins the span of a command that a call starts. The command's
// environment gets the span's context, so that the program's own spans are its
// children. Without a TracerProvider that is the caller's.
func (t Tracing) StartCommand(ctx context.Context) (context.Context, trace.Span) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		md, _ := metadata.FromIncomingContext(ctx)
		ctx = w3c.Extract(ctx, incoming(md))
	}
	return t.tracer.Start(ctx, "command")
}

// WithContext returns the context of an agent's Execute.
func WithContext(ctx context.Context) context.Context {
	carrier := propagation.MapCarrier{}
	w3c.Inject(ctx, carrier)
	for _, key := range []string{protocol.TraceParentKey, protocol.TraceStateKey} {
		if v := carrier[key]; v != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, key, v)
		}
	}
	return ctx
}

// LinkCommand links the span of an Attach to that of the command, by what the agent
// answered. An agent may lie: a link shows a trace and gives access to nothing.
func LinkCommand(span trace.Span, stream grpc.ClientStream) {
	if !span.IsRecording() {
		return
	}
	md, err := stream.Header()
	if err != nil {
		return
	}
	if sc := trace.SpanContextFromContext(w3c.Extract(context.Background(), incoming(md))); sc.IsValid() {
		span.AddLink(trace.Link{SpanContext: sc})
	}
}

// DescribeCall adds to the call's span what its audit record has of it.
func DescribeCall(ctx context.Context, c *call.Call, tenant, reason string) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String("sandgate.tenant", tenant), attribute.String("sandgate.request_id", c.RequestID))
	for key, value := range map[string]string{
		"sandgate.sandbox_id": c.Audit.SandboxID, "sandgate.exec_id": c.Audit.ExecID, "sandgate.reason": reason,
	} {
		if value != "" {
			span.SetAttributes(attribute.String(key, value))
		}
	}
}

// DescribeExit adds a command's end to its span.
func DescribeExit(span trace.Span, e *sandboxv1.Exited) {
	if !span.IsRecording() {
		return
	}
	span.AddEvent("exited")
	span.SetAttributes(attribute.String("sandgate.exit_reason", wire.ExitReason(e)))
	if e.ExitCode != nil {
		span.SetAttributes(attribute.Int("process.exit.code", int(e.GetExitCode())))
	}
	if e.GetReason() == sandboxv1.ExitReason_EXIT_REASON_LOST {
		span.SetStatus(codes.Error, "the command was lost")
	}
}

// incoming carries the metadata of a call.
type incoming metadata.MD

func (c incoming) Get(key string) string {
	if v := metadata.MD(c).Get(key); len(v) == 1 {
		return v[0]
	}
	return ""
}

// Set does nothing: nothing is written to incoming metadata.
func (c incoming) Set(string, string) {}

func (c incoming) Keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	return keys
}
