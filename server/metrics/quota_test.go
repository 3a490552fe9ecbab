package metrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/sandgate/sandgate/server/quota"
)

// However many tenants there are, the number of series is bounded, and a tenant keeps
// its series.
func TestQuotaMetricsAreBounded(t *testing.T) {
	config := quota.Config{Tenant: quota.Limits{MaxStreams: 5}}
	streams := quota.NewStreams(config)
	c := newQuotaCollector(quota.NewBook(&listed{}, config, time.Minute), streams)
	collect := func() map[string]float64 {
		ch := make(chan prometheus.Metric, 10*maxTenants)
		c.Collect(ch)
		close(ch)
		used := make(map[string]float64)
		for m := range ch {
			var out dto.Metric
			if err := m.Write(&out); err != nil {
				t.Fatal(err)
			}
			if m.Desc() == c.used {
				for _, l := range out.GetLabel() {
					if l.GetName() == "tenant" {
						used[l.GetValue()] = out.GetGauge().GetValue()
					}
				}
			}
		}
		return used
	}
	enter := func(tenant string) func() {
		leave, err := streams.Enter(quota.Owner{Tenant: tenant}, false)
		if err != nil {
			t.Fatal(err)
		}
		return leave
	}
	leave := enter("first")
	if used := collect(); used["first"] != 1 {
		t.Errorf("%v", used)
	}
	leave()
	for i := range 3 * maxTenants {
		defer enter(fmt.Sprint(i))()
	}
	used := collect()
	if n, ok := used["first"]; len(used) != maxTenants || !ok || n != 0 {
		t.Errorf("%d tenants, the first one %v %v", len(used), n, ok)
	}
}
