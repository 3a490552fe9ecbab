package metrics

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandgate/sandgate/server/quota"
)

// QuotaRefused counts a call beyond a quota.
func (m *Metrics) QuotaRefused(quota string) { m.quotaRefusals.WithLabelValues(quota).Inc() }

// CountQuotas adds the quotas and their use. It must be called once.
func (m *Metrics) CountQuotas(book *quota.Book, streams *quota.Streams) {
	m.Registry.MustRegister(newQuotaCollector(book, streams))
}

// quotaCollector reports quotas and their use from memory. The first tenants that use
// something have series, and keep them: an alert needs a zero, not the absence of a
// series.
type quotaCollector struct {
	book        *quota.Book
	streams     *quota.Streams
	used, limit *prometheus.Desc

	mu      sync.Mutex
	tenants []string
}

var _ prometheus.Collector = (*quotaCollector)(nil)

func newQuotaCollector(book *quota.Book, streams *quota.Streams) *quotaCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("sandgate_quota_"+name, help, []string{"tenant", "quota"}, nil)
	}
	return &quotaCollector{
		book: book, streams: streams,
		used:  desc("used", "What is in use of a quota, by tenant; without a tenant, of the server as a whole. The first 100 tenants that use something have a series."),
		limit: desc("limit", "The quota, in the unit that its name has."),
	}
}

// Describe implements prometheus.Collector.
func (c *quotaCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.used
	ch <- c.limit
}

// Collect implements prometheus.Collector. It leaves out what was not counted yet.
func (c *quotaCollector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	for _, tenant := range c.book.Tenants(c.streams) {
		if len(c.tenants) < maxTenants && !slices.Contains(c.tenants, tenant) {
			c.tenants = append(c.tenants, tenant)
		}
	}
	tenants := slices.Clone(c.tenants)
	c.mu.Unlock()
	for _, q := range c.book.Used(tenants, c.streams) {
		ch <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, float64(q.Limit), q.Owner.Tenant, q.Quota)
		if q.Used >= 0 {
			ch <- prometheus.MustNewConstMetric(c.used, prometheus.GaugeValue, float64(q.Used), q.Owner.Tenant, q.Quota)
		}
	}
}
