package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandgate/sandgate/server/authn"
)

// WatchRevocations adds when the revocation lists of client certificates are due; nil
// stands for none. It must be called once.
func (m *Metrics) WatchRevocations(r *authn.Revocations) {
	m.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "sandgate", Name: "client_crl_next_update_timestamp_seconds",
		Help: "When the first revocation list of client certificates is due, as a Unix time. 0: there is none that says.",
	}, func() float64 {
		if r == nil {
			return 0
		}
		next := r.NextUpdate()
		if next.IsZero() {
			return 0
		}
		return float64(next.Unix())
	}))
}
