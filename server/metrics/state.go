package metrics

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/server/wire"
)

// countAge is how long scrapes share one count of sandboxes, and countTimeout
// bounds a count.
const (
	countAge     = 15 * time.Second
	countTimeout = 8 * time.Second
)

// maxTenants is how many tenants have a series of their own. The first that are seen
// keep theirs; callers' credentials choose tenants, so there may be any number.
const maxTenants = 100

// otherLabel stands for all values that have no series of their own.
const otherLabel = "other"

// Source is what Count counts.
type Source struct {
	Provider providers.Provider
	Agents   *agentconn.Set
	// Templates returns those in force.
	Templates func() []*policy.Template
	// Closing reports whether the provider may be closed.
	Closing func() bool
	Log     *slog.Logger
}

// Count adds the numbers of sandboxes, pools and connections to agents. It must be
// called once.
func (m *Metrics) Count(source Source) { m.Registry.MustRegister(newStateCollector(m, source)) }

// pageSize is how many sandboxes a scrape lists at a time.
const pageSize = 1000

// stateCollector counts the provider's sandboxes during a scrape. Servers that
// share a substrate all count the same.
type stateCollector struct {
	source                       Source
	metrics                      *Metrics
	sandboxes, available, target *prometheus.Desc
	connections, tenants         *prometheus.Desc

	mu     sync.Mutex
	taken  time.Time
	counts []prometheus.Metric
	// transports are those of connections that were counted once.
	transports map[string]bool
	// byTenant are the sandboxes of the tenants that have a series.
	byTenant map[string]int
}

var _ prometheus.Collector = (*stateCollector)(nil)

func newStateCollector(m *Metrics, source Source) *stateCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("sandgate_"+name, help, labels, nil)
	}
	return &stateCollector{
		source:      source,
		metrics:     m,
		transports:  make(map[string]bool),
		byTenant:    make(map[string]int),
		sandboxes:   desc("sandboxes", "Sandboxes, by state and template; those of templates that the server no longer has are \"other\".", "state", "template"),
		tenants:     desc("tenant_sandboxes", "Sandboxes, by tenant. The first 100 tenants that the server sees have a series, those of the rest are \"other\".", "tenant"),
		available:   desc("pool_available", "Started sandboxes that are not claimed.", "template"),
		target:      desc("pool_target", "How many of a pool are to be available.", "template"),
		connections: desc("agent_connections", "Open connections to agents, by transport.", "transport"),
	}
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.sandboxes, c.tenants, c.available, c.target, c.connections} {
		ch <- d
	}
}

// countConnections counts open connections by transport. A transport that was
// counted once stays: an alert needs a zero, not the absence of a series.
func (c *stateCollector) countConnections() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := make(map[string]int)
	for transport := range c.transports {
		counts[transport] = 0
	}
	for _, t := range c.source.Agents.Live() {
		counts[t.Info().Transport]++
		c.transports[t.Info().Transport] = true
	}
	return counts
}

// Collect implements prometheus.Collector. It leaves out what it cannot count.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	connections := c.countConnections()
	for transport, n := range connections {
		ch <- prometheus.MustNewConstMetric(c.connections, prometheus.GaugeValue, float64(n), transport)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The provider may be closed once the server is stopping.
	if time.Since(c.taken) > countAge && !c.source.Closing() {
		// A scrape has no context.
		ctx, cancel := context.WithTimeout(context.Background(), countTimeout)
		defer cancel()
		c.counts, c.taken = nil, time.Now()
		if err := errors.Join(c.countSandboxes(ctx), c.countPools(ctx)); err != nil {
			c.metrics.countingFailures.Inc()
			c.source.Log.DebugContext(ctx, "sandboxes could not be counted", "error", err)
		}
	}
	for _, m := range c.counts {
		ch <- m
	}
}

func (c *stateCollector) add(d *prometheus.Desc, n int, labels ...string) {
	c.counts = append(c.counts, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...))
}

func (c *stateCollector) countSandboxes(ctx context.Context) error {
	type key struct{ state, template string }
	counts := make(map[key]int)
	// An alert needs a zero, not the absence of a series.
	known := make(map[string]bool)
	for _, t := range c.source.Templates() {
		known[t.Name] = true
		counts[key{wire.StateName(providers.StateActive), t.Name}] = 0
	}
	for tenant := range c.byTenant {
		c.byTenant[tenant] = 0
	}
	q := providers.Query{Limit: pageSize}
	for {
		page, err := c.source.Provider.List(ctx, q)
		if err != nil {
			return err
		}
		for _, info := range page.Sandboxes {
			template := info.Spec.Template
			if !known[template] {
				template = otherLabel
			}
			counts[key{wire.StateName(info.State), template}]++
			c.countTenant(info.Spec.Tenant)
		}
		if q.Token = page.Next; q.Token == "" {
			break
		}
	}
	for k, n := range counts {
		c.add(c.sandboxes, n, k.state, k.template)
	}
	for tenant, n := range c.byTenant {
		c.add(c.tenants, n, tenant)
	}
	return nil
}

// countTenant counts a sandbox. A tenant that is named like the rest is one of it.
func (c *stateCollector) countTenant(tenant string) {
	if _, known := c.byTenant[tenant]; !known && len(c.byTenant) >= maxTenants {
		tenant = otherLabel
	}
	c.byTenant[tenant]++
}

func (c *stateCollector) countPools(ctx context.Context) error {
	p, ok := c.source.Provider.(providers.Pooler)
	if !ok {
		return nil
	}
	var failed []error
	for _, t := range c.source.Templates() {
		if t.Pool == 0 {
			continue
		}
		status, err := p.PoolStatus(ctx, t.Name)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		c.add(c.available, status.Available, t.Name)
		c.add(c.target, status.Target, t.Name)
	}
	return errors.Join(failed...)
}
