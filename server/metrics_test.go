package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
	"github.com/sandgate/sandgate/server/wire"
)

// admin requests a page of the admin handler.
func (h *harness) admin(path string) (int, string) {
	h.t.Helper()
	rec := httptest.NewRecorder()
	h.server.AdminHandler(false).ServeHTTP(rec, httptest.NewRequestWithContext(h.t.Context(), http.MethodGet, path, nil))
	body, err := io.ReadAll(rec.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return rec.Code, string(body)
}

// metric returns the value of a metric without labels.
func (h *harness) metric(name string) float64 {
	h.t.Helper()
	_, body := h.admin("/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				h.t.Fatal(err)
			}
			return n
		}
	}
	h.t.Fatalf("no metric %s", name)
	return 0
}

// awaitMetric waits until /metrics has the line: a call is counted after its
// caller has the answer.
func (h *harness) awaitMetric(line string) {
	h.t.Helper()
	var body string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if _, body = h.admin("/metrics"); strings.Contains(body, "\n"+line+"\n") {
			return
		}
	}
	var near []string
	name, _, _ := strings.Cut(line, "{")
	for l := range strings.Lines(body) {
		if strings.HasPrefix(l, strings.Fields(name)[0]) {
			near = append(near, l)
		}
	}
	h.t.Errorf("no metric %s; there are %s", line, near)
}

// Creations that wait for an image are apart from those that do not.
func TestCreationsThatPullAreApart(t *testing.T) {
	h := newHarness(t, nil)
	h.provider.before = func(ctx context.Context, method, name string) error {
		if method == "create" && name == names.Substrate(call.DefaultTenant, "pulled") {
			providers.NotePull(ctx)
		}
		return nil
	}
	for _, id := range []string{"a", "pulled", "b", "pulled"} {
		h.create(id)
	}
	h.awaitMetric(`sandgate_create_duration_seconds_count{path="cold"} 2`)
	h.awaitMetric(`sandgate_create_duration_seconds_count{path="pull"} 1`)
	h.awaitMetric(`sandgate_create_duration_seconds_count{path="existing"} 1`)
}

func TestMetricsCountWhatHappens(t *testing.T) {
	h, log := audited(t, nil)
	h.provider.script.execute = func(a *scriptedAgent, req *sandboxv1.ExecuteRequest, out emitter) error {
		if req.GetShell() == "slow" {
			return errors.Join(out.started(0), out.send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Exited{
				Exited: &sandboxv1.Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT},
			}}))
		}
		return errors.Join(out.started(0), out.output(0, "hello"), out.exited(5, 0))
	}
	h.create("a")
	h.create("a")
	if _, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "b", Template: "none"}); err == nil {
		t.Fatal("no error")
	}
	for _, command := range []string{"quick", "slow"} {
		stream, err := h.client.Execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a",
			Command: &sandboxv1.ExecuteRequest_Shell{Shell: command}})
		for err == nil {
			_, err = stream.Recv()
		}
	}
	_ = h.conn.Invoke(t.Context(), "/sandbox.v1.SandboxService/Made.Up", &sandboxv1.GetServerInfoRequest{}, &sandboxv1.GetServerInfoResponse{})
	log.setFail(errors.New("no space left on device"))
	if _, err := h.client.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`grpc_server_handled_total{grpc_code="OK",grpc_method="CreateSandbox",grpc_service="sandbox.v1.SandboxService",grpc_type="unary"} 2`,
		`grpc_server_handled_total{grpc_code="NotFound",grpc_method="CreateSandbox",grpc_service="sandbox.v1.SandboxService",grpc_type="unary"} 1`,
		`grpc_server_handling_seconds_count{grpc_method="Execute",grpc_service="sandbox.v1.SandboxService",grpc_type="server_stream"} 2`,
		`sandgate_create_duration_seconds_count{path="cold"} 1`,
		`sandgate_create_duration_seconds_count{path="existing"} 1`,
		`sandgate_create_failures_total{reason="TEMPLATE_NOT_FOUND"} 1`,
		`sandgate_command_ends_total{reason="EXITED"} 1`,
		`sandgate_command_ends_total{reason="TIMED_OUT"} 1`,
		`sandgate_command_start_duration_seconds_count 2`,
		`sandgate_transferred_bytes_total{method="Execute"} 5`,
		`sandgate_agent_dials_total{outcome="OK"} 1`,
		`sandgate_agent_connections{transport="pipe"} 1`,
		`sandgate_audit_failures_total 2`,
		`sandgate_provider_up 1`,
		`sandgate_state_free_bytes -1`,
	} {
		h.awaitMetric(line)
	}
	_, body := h.admin("/metrics")
	for _, want := range []string{`sandgate_sandboxes{state="ACTIVE",template="default"}`, "go_goroutines ", "process_cpu_seconds_total ",
		`sandgate_build_info{go_version="go`, "sandgate_reap_round_duration_seconds_count 1"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(body, "Made") {
		t.Error("a method that a caller made up is in a label")
	}
	// A transport without connections counts as zero, and is not absent.
	h.server.agents.Drop(names.Substrate(call.DefaultTenant, "a"))
	h.awaitMetric(`sandgate_agent_connections{transport="pipe"} 0`)
	problems, err := testutil.GatherAndLint(h.server.metrics.Registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

// The number of series does not grow with what callers do.
func TestSeriesDoNotGrowWithCallers(t *testing.T) {
	h, _ := audited(t, func(c *Config) { c.Authenticator = nil })
	series := func() int {
		n, err := testutil.GatherAndCount(h.server.metrics.Registry)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	round := func(i int) {
		h.create(fmt.Sprint("s", i))
		for _, name := range []string{"a", "b"} {
			_, _ = h.client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: fmt.Sprint(name, i)})
			_, _ = h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Template: fmt.Sprint(name, i)})
		}
		_ = h.conn.Invoke(t.Context(), fmt.Sprintf("/made.up.Service%d/Method%d", i, i), &sandboxv1.GetServerInfoRequest{}, &sandboxv1.GetServerInfoResponse{})
	}
	round(0)
	h.awaitMetric(`sandgate_create_failures_total{reason="TEMPLATE_NOT_FOUND"} 2`)
	before := series()
	for i := 1; i < 50; i++ {
		round(i)
	}
	h.awaitMetric(`sandgate_create_failures_total{reason="TEMPLATE_NOT_FOUND"} 100`)
	if after := series(); after > before {
		t.Errorf("%d series, after 49 more of each %d", before, after)
	}
}

func TestMetricsOfReattachment(t *testing.T) {
	h, _ := audited(t, nil)
	release := make(chan struct{})
	h.provider.script.execute = func(_ *scriptedAgent, _ *sandboxv1.ExecuteRequest, out emitter) error {
		if err := out.started(0); err != nil {
			return err
		}
		<-release
		return errors.New("cut")
	}
	h.provider.script.attach = func(_ *scriptedAgent, _ *sandboxv1.AttachRequest, out emitter) error {
		return errors.Join(out.started(0), out.exited(0, 0))
	}
	h.create("a")
	stream, err := h.client.Execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a",
		Command: &sandboxv1.ExecuteRequest_Shell{Shell: "x"}})
	if err == nil {
		_, err = stream.Recv()
	}
	h.sandbox("a").cut()
	for err == nil {
		_, err = stream.Recv()
	}
	close(release)
	h.awaitMetric(`sandgate_reattachments_total{outcome="succeeded"} 1`)
	h.awaitMetric(`sandgate_reattachments_total{outcome="failed"} 0`)
	h.awaitMetric(`sandgate_command_ends_total{reason="EXITED"} 1`)
}

func TestMetricsOfTheReaper(t *testing.T) {
	h, _ := audited(t, func(c *Config) { c.Timing.ReapInterval = 10 * time.Millisecond })
	if _, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a", Ttl: wire.Duration(time.Second)}); err != nil {
		t.Fatal(err)
	}
	h.awaitMetric(`sandgate_reaped_total{reason="ttl"} 1`)
	h.awaitMetric(`sandgate_reaped_total{reason="idle"} 0`)
	h.awaitMetric(`sandgate_reap_failures_total 0`)
}

func TestMetricsOfRefusedCredentials(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Authenticator = authn.Any{} })
	_, err := h.client.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{})
	if code, _ := reason(t, err); code != codes.Unauthenticated {
		t.Fatal(err)
	}
	h.awaitMetric("sandgate_credentials_rejected_total 1")
	h.awaitMetric("sandgate_audit_suppressed_total 0")
}

// probed is a provider whose substrate can fail.
type probed struct {
	*scriptedProvider
	err    atomic.Pointer[error]
	probes atomic.Int64
}

func (p *probed) Probe(context.Context) (providers.Probe, error) {
	p.probes.Add(1)
	if err := p.err.Load(); err != nil {
		return providers.Probe{}, *err
	}
	return providers.Probe{FreeBytes: 42}, nil
}

// await waits for n more looks at the provider.
func (p *probed) await(n int64) {
	for want := p.probes.Load() + n; p.probes.Load() < want; {
		time.Sleep(time.Millisecond)
	}
}

func TestHealthFollowsTheProvider(t *testing.T) {
	p := &probed{}
	log := &lines{}
	h := newHarness(t, func(c *Config) {
		p.scriptedProvider = c.Provider.(*scriptedProvider)
		c.Provider, c.Timing.Probe = p, 20*time.Millisecond
		c.Logger = slog.New(slog.NewTextHandler(log, nil))
	})
	check := func(service string) healthv1.HealthCheckResponse_ServingStatus {
		t.Helper()
		resp, err := healthv1.NewHealthClient(h.conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetStatus()
	}
	await := func(want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); check("sandbox.v1.SandboxService") != want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("it does not become %s", want)
			}
		}
	}
	p.await(2)
	h.awaitMetric("sandgate_state_free_bytes 42")
	if code, _ := h.admin("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz %d", code)
	}
	broken := errors.New("read-only file system")
	p.err.Store(&broken)
	await(healthv1.HealthCheckResponse_NOT_SERVING)
	if got := check(""); got != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("the whole server is %s", got)
	}
	if code, body := h.admin("/readyz"); code != http.StatusServiceUnavailable || strings.Contains(body, "read-only") {
		t.Errorf("/readyz %d %s", code, body)
	}
	if code, _ := h.admin("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz %d", code)
	}
	h.awaitMetric("sandgate_provider_up 0")
	p.await(3)
	p.err.Store(nil)
	await(healthv1.HealthCheckResponse_SERVING)
	h.awaitMetric("sandgate_provider_up 1")
	if n := strings.Count(log.String(), "the provider does not work"); n != 1 {
		t.Errorf("%d lines say that the provider does not work", n)
	}
}

func TestProfilesAreServedOnRequestOnly(t *testing.T) {
	h := newHarness(t, nil)
	for profiles, want := range map[bool]int{false: http.StatusNotFound, true: http.StatusOK} {
		rec := httptest.NewRecorder()
		h.server.AdminHandler(profiles).ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/debug/pprof/cmdline", nil))
		if rec.Code != want {
			t.Errorf("with %v: %d", profiles, rec.Code)
		}
	}
}

// Failures that an operator can fix are in the log, errors of callers are not.
func TestOnlyFailuresOfOperatorsAreLogged(t *testing.T) {
	log := &lines{}
	h := newHarness(t, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	})
	failed := fmt.Errorf("fork: too many open files: %w", providers.ErrStartFailed)
	h.provider.failCreate.Store(&failed)
	if _, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "f"}); err == nil {
		t.Fatal("no error")
	}
	h.provider.failCreate.Store(nil)
	h.create("a")
	_, _ = h.client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: "none"})
	denied := &sandboxv1.StatFileRequest{SandboxId: "a", Path: "/x"}
	h.provider.script.stat = nil
	h.sandbox("a").agent.stat = func(*sandboxv1.StatFileRequest) (*sandboxv1.StatFileResponse, error) {
		return nil, agentStatus(codes.PermissionDenied, "POLICY_DENIED", "no")
	}
	if _, err := h.client.StatFile(t.Context(), denied); err == nil {
		t.Fatal("no error")
	}
	if _, err := h.client.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(log.String(), "sandbox deleted"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no line of the deletion")
		}
	}
	got := log.String()
	for _, want := range []string{
		`level=WARN msg=call method=/sandbox.v1.SandboxService/CreateSandbox code=FailedPrecondition`, "too many open files",
		`msg="sandbox created" tenant=default sandbox_id=a`, `msg="sandbox deleted" tenant=default sandbox_id=a`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	for _, none := range []string{"POLICY_DENIED", "SANDBOX_NOT_FOUND"} {
		if strings.Contains(got, none) {
			t.Errorf("%s in %s", none, got)
		}
	}
}
