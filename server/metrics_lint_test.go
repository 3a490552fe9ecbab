package server

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// Names, units and help texts follow Prometheus's conventions.
func TestMetricsLint(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	if _, err := h.execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
	h.awaitMetric(`sandgate_command_ends_total{reason="EXITED"} 1`)
	h.server.metrics.createFailures.WithLabelValues("INTERNAL")
	h.server.metrics.egressConns.WithLabelValues("OK")
	h.server.metrics.egressBytes.WithLabelValues("sent")
	_, page := h.admin("/metrics")
	problems, err := promlint.New(strings.NewReader(page)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if n, err := testutil.GatherAndCount(h.server.metrics.registry); err != nil || n < 40 {
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

// However many tenants there are, the number of series is bounded, a tenant keeps
// its series, and the sum is right.
func TestTenantsAreBounded(t *testing.T) {
	h := newHarness(t, nil)
	h.provider.make("first", providers.Spec{Tenant: "first", ID: "x"})
	h.awaitMetric(`sandgate_tenant_sandboxes{tenant="first"} 1`)
	for i := range 3 * maxTenants {
		h.provider.make(fmt.Sprint(i), providers.Spec{Tenant: fmt.Sprintf("t%d", i), ID: "x"})
	}
	c := newStateCollector(h.server)
	c.byTenant["first"] = 0
	for range 2 {
		if err := c.countSandboxes(t.Context()); err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, n := range c.byTenant {
			sum += n
		}
		if sum != 3*maxTenants+1 || len(c.byTenant) > maxTenants+1 || c.byTenant["first"] != 1 || c.byTenant[otherLabel] != 2*maxTenants+1 {
			t.Errorf("%d sandboxes of %d tenants, %d of the rest", sum, len(c.byTenant), c.byTenant[otherLabel])
		}
	}
}
