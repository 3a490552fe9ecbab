package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// collector counts the exports that it gets.
type collector struct {
	collectortrace.UnimplementedTraceServiceServer
	collectormetrics.UnimplementedMetricsServiceServer
	traces, metrics atomic.Int64
}

type traceCollector struct{ *collector }

func (c traceCollector) Export(context.Context, *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	c.traces.Add(1)
	return &collectortrace.ExportTraceServiceResponse{}, nil
}

type metricCollector struct{ *collector }

func (c metricCollector) Export(context.Context, *collectormetrics.ExportMetricsServiceRequest) (*collectormetrics.ExportMetricsServiceResponse, error) {
	c.metrics.Add(1)
	return &collectormetrics.ExportMetricsServiceResponse{}, nil
}

// The issuer is down, the collector takes connections and does not answer, and so does
// the receiver of a webhook. Calls that need none of them succeed at once, and the metrics
// show each outage. When they are back, the server goes on with them without a restart, and
// no event is lost.
func TestOutages(t *testing.T) {
	need(t)
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	secret := []byte(strings.Repeat("s", 32))
	kept, back := newHook(t, secret), make(chan struct{})
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-back:
			kept.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(receiver.Close)
	i := startIssuer(t, "127.0.0.1:0")
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	s := newServer(dir, append(watched(dir),
		"--tokens-file", write("tokens.yaml", fmt.Sprintf("tokens:\n- {name: ann, tenant: blue, sha256: %x}\n", sha256.Sum256([]byte("sgt_ann")))),
		"--config", write("config.yaml", fmt.Sprintf(`
auth:
  oidc:
  - {issuer: %q, audiences: [sandgate], tenant_claim: org}
webhooks:
- {name: receiver, url: %q, secret_file: %q}
`, i.url, receiver.URL, write("secret", "whsec_"+base64.StdEncoding.EncodeToString(secret)+"\n"))))...)
	s.env = []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + silent.Addr().String(), "OTEL_EXPORTER_OTLP_TIMEOUT=500",
		"OTEL_METRIC_EXPORT_INTERVAL=1000", "OTEL_BSP_SCHEDULE_DELAY=500",
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r := s.run("", "--token", "sgt_ann", "rm", "--all", "--yes"); r.code != 0 {
			t.Error(r)
		}
		s.Kill()
	})
	scrapes, client := s.scraper(), s.stubs(t)
	as := func(token string, args ...string) ran {
		return s.run("", append([]string{"--token", token}, args...)...)
	}
	want := func(got ran, code int, text string) {
		t.Helper()
		if got.code != code || !strings.Contains(got.stdout+got.stderr, text) {
			t.Fatalf("got %+v, want %d and %q", got, code, text)
		}
	}
	known := i.token("org:blue")
	want(as(known, "create", "first"), 0, "first")
	i.post("/rotate", url.Values{})
	unknown := i.token("org:blue") // its key is one that the server has not seen
	i.kill()

	const calls = 10
	began := time.Now()
	for n := range calls {
		id := fmt.Sprint("s", n)
		want(as("sgt_ann", "create", id), 0, id)
		want(as(known, "exec", id, "--", "echo", id), 0, id)
		want(as("sgt_ann", "rm", id), 0, "")
	}
	t.Logf("%d sandboxes in %v", calls, time.Since(began))
	for range 2 {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+unknown)
		_, err := client.ListSandboxes(ctx, &sandboxv1.ListSandboxesRequest{})
		wantError(t, "a token of a key that nobody vouches for", err, codes.Unavailable, "AUTHENTICATION_UNAVAILABLE")
	}
	if n := scrapes.value(t, "sandgate_credentials_rejected_total"); n < 2 {
		t.Errorf("%g calls were counted as refused", n)
	}
	for _, signal := range []string{"traces", "metrics"} {
		scrapes.await(t, fmt.Sprintf("sandgate_otlp_export_failures_total{signal=%q}", signal), 1)
	}
	if n := scrapes.value(t, "sandgate_trace_spans_exported_total"); n > 0 {
		t.Errorf("%g spans are said to be exported", n)
	}
	scrapes.await(t, `sandgate_webhook_attempts_total{outcome="failed",webhook="receiver"}`, 1)
	scrapes.await(t, `sandgate_webhook_delay_seconds{webhook="receiver"}`, 1)

	close(back)
	if err := silent.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := net.Listen("tcp", silent.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, exports := new(collector), grpc.NewServer()
	collectortrace.RegisterTraceServiceServer(exports, traceCollector{c})
	collectormetrics.RegisterMetricsServiceServer(exports, metricCollector{c})
	go func() { _ = exports.Serve(again) }()
	t.Cleanup(exports.Stop)
	i = startIssuer(t, i.url)
	fresh := i.token("org:blue")
	eventually(t, time.Minute, "the issuer's keys", func() bool { return as(fresh, "ls", "--quiet").stdout == "first\n" })
	eventually(t, time.Minute, "exports of both signals", func() bool {
		_ = as(fresh, "ls")
		return c.traces.Load() > 0 && c.metrics.Load() > 0 && scrapes.value(t, "sandgate_trace_spans_exported_total") > 0
	})
	last := fmt.Sprintf("s%d.ended", calls-1)
	eventually(t, time.Minute, "the last event", func() bool { return kept.has(last) })
	got := kept.got()
	for n := range calls {
		for _, kind := range []string{"created", "ended"} {
			if event := fmt.Sprintf("s%d.%s", n, kind); !kept.has(event) {
				t.Errorf("the webhook missed %s: %v", event, got)
			}
		}
	}
	eventually(t, time.Minute, "a webhook without delay", func() bool { return scrapes.value(t, `sandgate_webhook_delay_seconds{webhook="receiver"}`) == 0 })
	if len(kept.renamed) > 0 {
		t.Errorf("the webhook got %v again with other ids", kept.renamed)
	}
}
