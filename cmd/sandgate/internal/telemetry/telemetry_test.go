package telemetry

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/test/testserver"
)

// receiver is an OTLP collector.
type receiver struct {
	collectortrace.UnimplementedTraceServiceServer
	collectormetrics.UnimplementedMetricsServiceServer

	mu      sync.Mutex
	spans   []*tracev1.Span
	metrics map[string]bool
}

func (r *receiver) spansNow() []*tracev1.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spans
}

type traceReceiver struct{ *receiver }

func (r traceReceiver) Export(_ context.Context, req *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range req.GetResourceSpans() {
		for _, ss := range rs.GetScopeSpans() {
			r.spans = append(r.spans, ss.GetSpans()...)
		}
	}
	return &collectortrace.ExportTraceServiceResponse{}, nil
}

type metricReceiver struct{ *receiver }

func (r metricReceiver) Export(_ context.Context, req *collectormetrics.ExportMetricsServiceRequest) (*collectormetrics.ExportMetricsServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rm := range req.GetResourceMetrics() {
		for _, sm := range rm.GetScopeMetrics() {
			for _, m := range sm.GetMetrics() {
				r.metrics[m.GetName()] = true
			}
		}
	}
	return &collectormetrics.ExportMetricsServiceResponse{}, nil
}

// collector serves a receiver, to which the environment directs telemetry.
func collector(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{metrics: make(map[string]bool)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	collectortrace.RegisterTraceServiceServer(s, traceReceiver{r})
	collectormetrics.RegisterMetricsServiceServer(s, metricReceiver{r})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	return r
}

// traced is a server with telemetry and sandbox "a", whose agent is real.
type traced struct {
	exporter *Exporter
	server   *server.Server
	client   sandboxv1.SandboxServiceClient
}

func startTraced(t *testing.T, opts ...grpc.DialOption) traced {
	t.Helper()
	machine, dir := testserver.Machine(t)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	exporter, err := Open(t.Context(), "dev", log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exporter.Close(context.Background()) })
	address, srv := testserver.Serve(t, dir, server.Config{Provider: machine.Open(), Tracer: exporter.Tracer(), Logger: log})
	if err := exporter.Watch(t.Context(), srv.Registry()); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(address, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	h := traced{exporter: exporter, server: srv, client: sandboxv1.NewSandboxServiceClient(conn)}
	if _, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h traced) execute(ctx context.Context, id, shell string) (string, error) {
	stream, err := h.client.Execute(ctx, &sandboxv1.ExecuteRequest{
		SandboxId: "a", ExecId: id, Command: &sandboxv1.ExecuteRequest_Shell{Shell: shell},
	})
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out.String(), nil
		}
		if err != nil {
			return out.String(), err
		}
		out.Write(m.GetOutput().GetData())
	}
}

// One trace leads from the client's span to the command, whose environment has its
// span's context; a later reader's trace has a link to it.
func TestTraceFromClientToCommand(t *testing.T) {
	r := collector(t)
	clientSpans := sdktrace.NewTracerProvider()
	h := startTraced(t, grpc.WithStatsHandler(otelgrpc.NewClientHandler(
		otelgrpc.WithTracerProvider(clientSpans), otelgrpc.WithPropagators(propagation.TraceContext{}))))
	ctx, root := clientSpans.Tracer("test").Start(t.Context(), "agent turn")
	out, err := h.execute(ctx, "x", `echo "$TRACEPARENT"; exit 3`)
	if err != nil {
		t.Fatal(err)
	}
	other, otherRoot := clientSpans.Tracer("test").Start(t.Context(), "another reader")
	attached, err := h.client.Attach(other, &sandboxv1.AttachRequest{SandboxId: "a", ExecId: "x"})
	for err == nil {
		_, err = attached.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if err := errors.Join(h.exporter.traces.ForceFlush(t.Context()), h.exporter.metrics.ForceFlush(t.Context())); err != nil {
		t.Fatal(err)
	}

	trace := root.SpanContext().TraceID()
	byName := make(map[string]*tracev1.Span)
	for _, s := range r.spansNow() {
		if string(s.GetTraceId()) == string(trace[:]) {
			byName[s.GetName()] = s
		}
	}
	call, command, hop := byName["sandbox.v1.SandboxService/Execute"], byName["command"], byName["sandbox.agent.v1.AgentService/Execute"]
	if call == nil || command == nil || hop == nil {
		t.Fatalf("spans %v", byName)
	}
	if len(call.GetParentSpanId()) == 0 || call.GetKind() != tracev1.Span_SPAN_KIND_SERVER {
		t.Errorf("the call's span is not a child of the client's: %v", call)
	}
	if string(command.GetParentSpanId()) != string(call.GetSpanId()) || string(hop.GetParentSpanId()) != string(command.GetSpanId()) {
		t.Errorf("command %v, hop %v", command, hop)
	}
	if want := "00-" + hex.EncodeToString(trace[:]) + "-" + hex.EncodeToString(command.GetSpanId()) + "-01\n"; out != want {
		t.Errorf("TRACEPARENT %q, want %q", out, want)
	}
	var events []string
	for _, e := range command.GetEvents() {
		events = append(events, e.GetName())
	}
	if strings.Join(events, " ") != "started exited" {
		t.Errorf("events %v", events)
	}
	if v := attributesOf(command); v["process.exit.code"] != "3" || v["sandgate.exit_reason"] != "EXITED" {
		t.Errorf("attributes %v", v)
	}
	if v := attributesOf(call); v["sandgate.sandbox_id"] != "a" || v["sandgate.exec_id"] != "x" || v["sandgate.tenant"] != "default" {
		t.Errorf("attributes %v", v)
	}

	trace = otherRoot.SpanContext().TraceID()
	linked := false
	for _, s := range r.spansNow() {
		for _, l := range s.GetLinks() {
			linked = linked || string(s.GetTraceId()) == string(trace[:]) && string(l.GetSpanId()) == string(command.GetSpanId())
		}
	}
	if !linked {
		t.Error("the span of Attach has no link to the command's")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.metrics["sandgate_command_ends_total"] && !r.metrics["sandgate_command_ends"] {
		t.Errorf("metrics %v", r.metrics)
	}
}

func attributesOf(s *tracev1.Span) map[string]string {
	values := make(map[string]string)
	for _, a := range s.GetAttributes() {
		if _, number := a.GetValue().GetValue().(*commonv1.AnyValue_IntValue); number {
			values[a.GetKey()] = strconv.FormatInt(a.GetValue().GetIntValue(), 10)
			continue
		}
		values[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return values
}

// The trace context of a caller reaches the command of a server that traces nothing.
func TestTraceContextWithoutTraces(t *testing.T) {
	h := startTraced(t)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for given, want := range map[string]string{parent: parent + "\n", "00-" + strings.Repeat("0", 52): "\n", "x; rm -rf /": "\n"} {
		out, err := h.execute(metadata.AppendToOutgoingContext(t.Context(), "traceparent", given), "", `echo "$TRACEPARENT"`)
		if err != nil || out != want {
			t.Errorf("%q: %q, %v", given, out, err)
		}
	}
}

// A collector that is down, or takes connections and answers nothing, delays no call
// and no stop for long, and the metrics show it.
func TestCollectorThatDoesNotAnswer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for name, addr := range map[string]string{"silent": silent.Addr().String(), "down": closed.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+addr)
			t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100")
			// No export but the forced one, and a queue that is full at once.
			t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
			t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
			h := startTraced(t)
			for range 20 {
				if out, err := h.execute(t.Context(), "", "echo ok"); err != nil || out != "ok\n" {
					t.Fatalf("%q, %v", out, err)
				}
			}
			_ = h.exporter.traces.ForceFlush(t.Context())
			if n := testutil.ToFloat64(h.exporter.failures.WithLabelValues("traces")); n == 0 {
				t.Error("no failure was counted")
			}
			if all, sent := testutil.ToFloat64(h.exporter.spans), testutil.ToFloat64(h.exporter.exported); all < 40 || sent != 0 {
				t.Errorf("%v spans, %v exported", all, sent)
			}
			begun := time.Now()
			h.exporter.Close(t.Context())
			if took := time.Since(begun); took > 4*flushTime {
				t.Errorf("close took %s", took)
			}
		})
	}
}

func TestTelemetryEnvironment(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		on   bool
		fail string
	}{
		"nothing":      {},
		"endpoint":     {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4317"}, on: true},
		"own endpoint": {env: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h:4317"}, on: true},
		"other signal": {env: map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h:4317"}},
		"none":         {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4317", "OTEL_TRACES_EXPORTER": "none"}},
		"disabled":     {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4317", "OTEL_SDK_DISABLED": "true"}},
		"other protocol": {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
			fail: "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf: this server exports with grpc"},
		"other exporter": {env: map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, fail: "OTEL_TRACES_EXPORTER=zipkin"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			on, err := otlpEnabled(signalTraces)
			if on != c.on || (err != nil) != (c.fail != "") || err != nil && !strings.Contains(err.Error(), c.fail) {
				t.Errorf("%v, %v", on, err)
			}
		})
	}
}
