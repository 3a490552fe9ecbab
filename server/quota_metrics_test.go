package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/quota"
)

// Quotas and their use have series by tenant, which stay when nothing is in use, and a
// refusal is counted.
func TestQuotaMetrics(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.Quotas = quota.Config{MaxSandboxes: 5, Tenant: quota.Limits{MaxSandboxes: 1, MaxStreams: 7, CreationsPerMinute: 60}}
	})
	h.create("a")
	h.awaitMetric(`sandgate_quota_used{quota="max_sandboxes",tenant="default"} 1`)
	for _, want := range []string{
		`sandgate_quota_used{quota="max_sandboxes",tenant=""} 1`, `sandgate_quota_limit{quota="max_sandboxes",tenant=""} 5`,
		`sandgate_quota_limit{quota="max_sandboxes",tenant="default"} 1`, `sandgate_quota_limit{quota="max_streams",tenant="default"} 7`,
		`sandgate_quota_used{quota="max_streams",tenant="default"} 0`,
	} {
		h.awaitMetric(want)
	}
	_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "b"})
	wantReason(t, err, "QUOTA_EXCEEDED")
	h.awaitMetric(`sandgate_quota_refusals_total{quota="max_sandboxes"} 1`)
	_, page := h.admin("/metrics")
	if strings.Contains(page, "creations_per_minute") {
		t.Error("there is a series for a rate that only the ledger knows")
	}
	if problems, err := promlint.New(strings.NewReader(page)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if _, err := h.client.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
	h.awaitMetric(`sandgate_quota_used{quota="max_sandboxes",tenant="default"} 0`)
}

// A caller that goes on beyond its quota is answered slowly.
func TestRefusalsArePaced(t *testing.T) {
	h, one, _ := twoTenants(t)
	h.server.streams.Configure(quota.Config{Overrides: map[quota.Owner]quota.Limits{{Tenant: "one"}: {CommandsPerMinute: 1}}})
	const calls = 30 // 20 at once, ten at 50 ms each
	start := time.Now()
	refused := 0
	for range calls {
		stream, err := h.client.Execute(one, &sandboxv1.ExecuteRequest{SandboxId: "none"})
		if err == nil {
			_, err = stream.Recv()
		}
		if strings.Contains(fmt.Sprint(err), "commands a minute") {
			refused++
		}
	}
	if took := time.Since(start); refused < calls-5 || took < 400*time.Millisecond {
		t.Errorf("%d of %d refused in %v", refused, calls, took)
	}
}
