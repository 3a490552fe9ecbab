package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandgate/sandgate/providers"
)

// ShowEnforcement adds whether each protection is enforced. It must be called once.
func (m *Metrics) ShowEnforcement(now func() []providers.Enforcement) {
	m.Registry.MustRegister(&enforcementCollector{now, prometheus.NewDesc("sandgate_protection_enforced",
		"1 if a protection is enforced, 0 if it is not, or if that is not known.", []string{"protection"}, nil)})
}

// enforcementCollector reads the protections during a scrape.
type enforcementCollector struct {
	now  func() []providers.Enforcement
	desc *prometheus.Desc
}

var _ prometheus.Collector = (*enforcementCollector)(nil)

// Describe implements prometheus.Collector.
func (c *enforcementCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *enforcementCollector) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c.now() {
		value := 0.0
		if e.Enforced {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, value, e.Name)
	}
}
