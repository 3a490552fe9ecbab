package server

import (
	"slices"
	"sync/atomic"
	"testing"

	dto "github.com/prometheus/client_model/go"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// verifying is a provider that learns whether it enforces a limit.
type verifying struct {
	*scriptedProvider
	enforced atomic.Bool
}

func (v *verifying) Enforcement() []providers.Enforcement {
	return []providers.Enforcement{{Name: "network", Enforced: v.enforced.Load(), Detail: "as verified"}}
}

// What a provider finds out while it runs shows at once.
func TestEnforcementIsReportedAsItIsKnownNow(t *testing.T) {
	v := &verifying{}
	h := newHarness(t, func(c *Config) {
		v.scriptedProvider = c.Provider.(*scriptedProvider)
		c.Provider = v
	})
	for _, want := range []bool{false, true, false} {
		v.enforced.Store(want)
		resp, err := h.client.GetServerInfo(t.Context(), &sandboxv1.GetServerInfoRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if e := resp.GetEnforcement(); len(e) != 1 || e[0].GetEnforced() != want || e[0].GetDetail() != "as verified" {
			t.Errorf("GetServerInfo: %v, want %v", e, want)
		}
		families, err := h.server.Registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "sandgate_protection_enforced" })
		if i < 0 || len(families[i].GetMetric()) != 1 {
			t.Fatalf("the metric: %v", families)
		}
		m := families[i].GetMetric()[0]
		if m.GetLabel()[0].GetValue() != "network" || (m.GetGauge().GetValue() == 1) != want {
			t.Errorf("the metric: %v, want %v", m, want)
		}
	}
}
