package server

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/carrier"
)

// Names, units and help texts follow Prometheus's conventions.
func TestMetricsFollowPrometheusConventions(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	if _, err := h.execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
	h.awaitMetric(`sandgate_command_ends_total{reason="EXITED"} 1`)
	_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{Template: "none"})
	wantReason(t, err, "TEMPLATE_NOT_FOUND")
	h.server.metrics.EgressOpened()
	h.server.metrics.EgressEnded("OK", carrier.Ended{Addr: "192.0.2.1:443"})
	_, page := h.admin("/metrics")
	problems, err := promlint.New(strings.NewReader(page)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if n, err := testutil.GatherAndCount(h.server.metrics.Registry); err != nil || n < 40 {
		t.Errorf("%d series, %v", n, err)
	}
}

func TestGapsAreCounted(t *testing.T) {
	h := newHarness(t, nil)
	h.provider.script.execute = func(_ *scriptedAgent, _ *sandboxv1.ExecuteRequest, out emitter) error {
		if err := out.started(0); err != nil {
			return err
		}
		if err := out.send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Gap{Gap: &sandboxv1.Gap{Start: 0, End: 7}}}); err != nil {
			return err
		}
		return out.exited(7, 0)
	}
	h.create("a")
	if _, err := h.execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
	h.awaitMetric(`sandgate_output_gaps_total 1`)
	h.awaitMetric(`sandgate_output_gap_bytes_total 7`)
}
