package metrics

import "github.com/prometheus/client_golang/prometheus"

// clock counts the leaps of the wall clock, by direction.
type clock func() (forward, back uint64)

var clockLeaps = prometheus.NewDesc("sandgate_clock_leaps_total",
	"Leaps of the wall clock by two seconds or more, forward or back: it was set, or the machine slept.", []string{"direction"}, nil)

// WatchClock adds how often the wall clock leapt. It must be called once.
func (m *Metrics) WatchClock(leaps func() (forward, back uint64)) {
	m.Registry.MustRegister(clock(leaps))
}

// Describe implements prometheus.Collector.
func (c clock) Describe(out chan<- *prometheus.Desc) { out <- clockLeaps }

// Collect implements prometheus.Collector.
func (c clock) Collect(out chan<- prometheus.Metric) {
	forward, back := c()
	out <- prometheus.MustNewConstMetric(clockLeaps, prometheus.CounterValue, float64(forward), "forward")
	out <- prometheus.MustNewConstMetric(clockLeaps, prometheus.CounterValue, float64(back), "back")
}
