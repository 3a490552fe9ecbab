package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/policy"
)

// listed is a provider with a list of sandboxes.
type listed struct {
	providers.Provider
	sandboxes []providers.Info
}

func (l *listed) add(tenant string) {
	l.sandboxes = append(l.sandboxes, providers.Info{State: providers.StateActive, Spec: providers.Spec{Tenant: tenant, ID: "x"}})
}

func (l *listed) List(_ context.Context, q providers.Query) (providers.Page, error) {
	from := 0
	if q.Token != "" {
		var err error
		if from, err = strconv.Atoi(q.Token); err != nil {
			return providers.Page{}, err
		}
	}
	rest := l.sandboxes[from:]
	if len(rest) <= q.Limit {
		return providers.Page{Sandboxes: rest}, nil
	}
	return providers.Page{Sandboxes: rest[:q.Limit], Next: fmt.Sprint(from + q.Limit)}, nil
}

// However many tenants there are, the number of series is bounded, a tenant keeps
// its series, and the sum is right.
func TestTenantsBeyondTheBoundShareOneSeries(t *testing.T) {
	provider := &listed{}
	c := newStateCollector(New("1.0.0", "listed"), Source{
		Provider: provider, Log: slog.New(slog.DiscardHandler), Templates: func() []*policy.Template { return nil },
	})
	count := func() {
		t.Helper()
		if err := c.countSandboxes(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	provider.add("first")
	count()
	const more = 2*pageSize + 1
	for i := range more {
		provider.add(fmt.Sprintf("t%d", i))
	}
	for range 2 {
		count()
		sum := 0
		for _, n := range c.byTenant {
			sum += n
		}
		rest := c.byTenant[otherLabel]
		if sum != more+1 || len(c.byTenant) != maxTenants+1 || c.byTenant["first"] != 1 || rest != more-maxTenants+1 {
			t.Errorf("%d sandboxes of %d tenants, %d of the rest", sum, len(c.byTenant), rest)
		}
	}
}
