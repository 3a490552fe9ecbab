// Package metrics counts what the server does, for Prometheus.
package metrics

import (
	"context"
	"runtime"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/carrier"
	"github.com/sandgate/sandgate/server/events"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/wire"
)

// Metrics are the server's own. No label holds a caller's text: methods,
// templates, codes and reasons are known lists.
type Metrics struct {
	Registry *prometheus.Registry
	rpc      *grpcprom.ServerMetrics

	bytes            *prometheus.CounterVec
	createSeconds    *prometheus.HistogramVec
	createFailures   *prometheus.CounterVec
	CreateWait       prometheus.Histogram
	StartSeconds     prometheus.Histogram
	commandEnds      *prometheus.CounterVec
	gaps             prometheus.Counter
	gapBytes         prometheus.Counter
	dials            *prometheus.CounterVec
	Reattachments    *prometheus.CounterVec
	reaped           *prometheus.CounterVec
	ReapSeconds      prometheus.Histogram
	reapLag          prometheus.Histogram
	ReapFailures     prometheus.Counter
	Refused          prometheus.Counter
	Suppressed       prometheus.Counter
	AuditFailures    prometheus.Counter
	ProviderUp       prometheus.Gauge
	StateFree        prometheus.Gauge
	countingFailures prometheus.Counter
	egressConns      *prometheus.CounterVec
	egressOpen       prometheus.Gauge
	egressBytes      *prometheus.CounterVec
	previewRequests  *prometheus.CounterVec
	reloads          *prometheus.CounterVec
	quotaRefusals    *prometheus.CounterVec
	reloadsOK        prometheus.Gauge
	events           *prometheus.CounterVec
	EventFailures    prometheus.Counter
	webhookAttempts  *prometheus.CounterVec
	webhookDrops     *prometheus.CounterVec
	webhookDelay     *prometheus.GaugeVec
}

// Values of the label "path": where a sandbox came from.
const (
	createdCold  = "cold"
	createdPool  = "pool"
	createdPull  = "pull"
	createdFound = "existing"
)

// secondsBuckets range from a file call to a creation that waits for a node.
var secondsBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

// New returns the metrics of a server of this version in front of a provider.
func New(version, provider string) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "sandgate", Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "sandgate", Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "sandgate", Name: name, Help: help})
	}
	seconds := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: "sandgate", Name: name, Help: help, Buckets: secondsBuckets}
	}
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		rpc:      grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(grpcprom.WithHistogramBuckets(secondsBuckets))),

		bytes:            counters("transferred_bytes_total", "Content and output that ended calls have moved.", "method"),
		createSeconds:    prometheus.NewHistogramVec(seconds("create_duration_seconds", "Time of successful creations, by where the sandbox came from: pool, cold, pull (cold, after its image was pulled) or existing."), []string{"path"}),
		createFailures:   counters("create_failures_total", "Failed creations, by error reason.", "reason"),
		CreateWait:       prometheus.NewHistogram(seconds("create_wait_seconds", "Time that creations waited for others, because of the bound of creations at the same time.")),
		StartSeconds:     prometheus.NewHistogram(seconds("command_start_duration_seconds", "Time from an Execute call to the start of its command.")),
		commandEnds:      counters("command_ends_total", "Ends of commands that were reported to callers, by exit reason. A command with two readers counts twice.", "reason"),
		gaps:             counter("output_gaps_total", "Gaps that were sent to readers: output that had been dropped before they came."),
		gapBytes:         counter("output_gap_bytes_total", "Bytes of output in such gaps."),
		dials:            counters("agent_dials_total", "Attempts to connect to an agent, by outcome: OK or an error reason.", "outcome"),
		Reattachments:    counters("reattachments_total", "Streams whose connection to the agent broke, by outcome: succeeded or failed.", "outcome"),
		reaped:           counters("reaped_total", "Sandboxes that the server deleted by itself, by reason: ttl or idle.", "reason"),
		ReapSeconds:      prometheus.NewHistogram(seconds("reap_round_duration_seconds", "Time of the rounds that look for expired sandboxes.")),
		reapLag:          prometheus.NewHistogram(seconds("reap_lag_seconds", "Time from the expiry of a sandbox to its deletion by the server.")),
		ReapFailures:     counter("reap_failures_total", "Rounds, and deletions of expired sandboxes, that failed."),
		Refused:          counter("credentials_rejected_total", "Calls refused for their credentials."),
		Suppressed:       counter("audit_suppressed_total", "Calls refused for their credentials without an audit record and a log line, to bound their number."),
		AuditFailures:    counter("audit_failures_total", "Audit records that could not be written."),
		ProviderUp:       gauge("provider_up", "1 if the last probe of the provider's substrate succeeded."),
		StateFree:        gauge("state_free_bytes", "Free space of the file system that holds sandboxes. -1: not known."),
		countingFailures: counter("count_failures_total", "Scrapes that could not count sandboxes or pools."),
	}
	m.previewRequests = counters("preview_requests_total", "Requests to the preview listener that have ended, by kind: port, file, or refused without a valid token, and by class of their status.", "kind", "status")
	m.reloads = counters("config_reloads_total", "Changed configuration files, by outcome: OK, or refused while the former one stays in force.", "outcome")
	m.reloadsOK = gauge("config_reload_success", "1 if the configuration file is in force as it is now, 0 if it was refused.")
	m.reloadsOK.Set(1)
	m.reloads.WithLabelValues(reloadRefused)
	m.quotaRefusals = counters("quota_refusals_total", "Calls beyond a quota, by quota.", "quota")
	m.egressConns = counters("egress_connections_total", "Connections of sandboxes with the network mode PROXY that have ended or were refused, and refused names, by outcome: OK, broken, unreachable, limit, or why a rule denied it.", "outcome")
	m.egressOpen = gauge("egress_connections", "Open connections of sandboxes with the network mode PROXY.")
	m.egressBytes = counters("egress_bytes_total", "Bytes of ended connections of sandboxes with the network mode PROXY, by direction: sent or received.", "direction")
	m.events = counters("events_total", "Events of sandboxes that this server has recorded, by type.", "type")
	m.EventFailures = counter("event_failures_total", "Rounds of the search for events of sandboxes that failed.")
	m.webhookAttempts = counters("webhook_attempts_total", "Attempts to deliver an event, by webhook and outcome: OK or failed.", "webhook", "outcome")
	m.webhookDrops = counters("webhook_dropped_total", "Events that were given up because they could not be delivered for a day, by webhook.", "webhook")
	m.webhookDelay = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "sandgate", Name: "webhook_delay_seconds", Help: "Age of the event that a webhook was last attempted with, if that failed, and 0 if it succeeded. On the server that sends only.",
	}, []string{"webhook"})
	for _, t := range events.Types() {
		if t != events.Resync {
			m.events.WithLabelValues(string(t))
		}
	}
	m.ProviderUp.Set(1)
	m.StateFree.Set(-1)
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "sandgate", Name: "build_info", Help: "1, labelled by the versions of server and Go, and by the provider.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version(), "provider": provider},
	})
	build.Set(1)
	for _, outcome := range []string{ReattachSucceeded, ReattachFailed} {
		m.Reattachments.WithLabelValues(outcome)
	}
	for _, reason := range []string{reapedByTTL, reapedByIdleness} {
		m.reaped.WithLabelValues(reason)
	}
	// Prometheus sees no increase in a series that begins above zero: the first commands
	// that are lost, often many at once, would raise no alert.
	for reason := range sandboxv1.ExitReason_name {
		if reason := sandboxv1.ExitReason(reason); reason != sandboxv1.ExitReason_EXIT_REASON_UNSPECIFIED {
			m.commandEnds.WithLabelValues(wire.ExitReason(&sandboxv1.Exited{Reason: reason}))
		}
	}
	m.Registry.MustRegister(m.rpc, m.bytes, m.createSeconds, m.createFailures, m.CreateWait, m.StartSeconds, m.commandEnds, m.gaps, m.gapBytes, m.dials,
		m.Reattachments, m.reaped, m.ReapSeconds, m.reapLag, m.ReapFailures, m.Refused, m.Suppressed, m.AuditFailures,
		m.ProviderUp, m.StateFree, m.countingFailures, m.previewRequests, m.reloads, m.reloadsOK, m.quotaRefusals, m.egressConns, m.egressOpen, m.egressBytes,
		m.events, m.EventFailures, m.webhookAttempts, m.webhookDrops, m.webhookDelay, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Values of labels.
const (
	reloadOK          = "OK"
	reloadRefused     = "refused"
	webhookOK         = "OK"
	webhookFailed     = "failed"
	ReattachSucceeded = "succeeded"
	ReattachFailed    = "failed"
	reapedByTTL       = "ttl"
	reapedByIdleness  = "idle"
)

// Interceptors count the calls of known methods: a caller may invent others.
func (m *Metrics) Interceptors() (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	known := selector.MatchFunc(func(ctx context.Context, _ interceptors.CallMeta) bool {
		return call.Of(ctx).Audit.Operation != call.UnknownOperation
	})
	return selector.UnaryServerInterceptor(m.rpc.UnaryServerInterceptor(), known),
		selector.StreamServerInterceptor(m.rpc.StreamServerInterceptor(), known)
}

// Ended counts a call that has ended.
func (m *Metrics) Ended(c *call.Call, resp any, err error, took time.Duration) {
	if n := c.Bytes.Load(); n > 0 && c.Begun {
		m.bytes.WithLabelValues(c.Audit.Operation).Add(float64(n))
	}
	if c.Method != sandboxv1.SandboxService_CreateSandbox_FullMethodName || !c.Begun {
		return
	}
	if err != nil {
		m.createFailures.WithLabelValues(fault.StatusReason(err)).Inc()
		return
	}
	path := createdFound
	if made, ok := resp.(*sandboxv1.CreateSandboxResponse); ok && made.GetCreated() {
		switch {
		case made.GetSandbox().GetFromPool():
			path = createdPool
		case c.Pulled:
			path = createdPull
		default:
			path = createdCold
		}
	}
	m.createSeconds.WithLabelValues(path).Observe(took.Seconds())
}

// Gap counts dropped output that a reader asked for.
func (m *Metrics) Gap(g *sandboxv1.Gap) {
	m.gaps.Inc()
	m.gapBytes.Add(float64(g.GetEnd() - g.GetStart()))
}

// CommandEnded counts the end of a command that a caller received.
func (m *Metrics) CommandEnded(e *sandboxv1.Exited) {
	m.commandEnds.WithLabelValues(wire.ExitReason(e)).Inc()
}

// Dialled counts an attempt to connect to an agent.
func (m *Metrics) Dialled(ctx context.Context, err error) {
	outcome := "OK"
	if err != nil {
		outcome = fault.ReasonName(fault.From(ctx, err).Reason)
	}
	m.dials.WithLabelValues(outcome).Inc()
}

// EgressOpened counts a connection of a sandbox that has opened.
func (m *Metrics) EgressOpened() { m.egressOpen.Inc() }

// PreviewEnded counts a request to the preview listener.
func (m *Metrics) PreviewEnded(kind, status string) {
	m.previewRequests.WithLabelValues(kind, status).Inc()
}

// EgressEnded counts a connection of a sandbox that has ended or was refused.
func (m *Metrics) EgressEnded(outcome string, e carrier.Ended) {
	m.egressConns.WithLabelValues(outcome).Inc()
	if e.Addr != "" {
		m.egressOpen.Dec()
		m.egressBytes.WithLabelValues("sent").Add(float64(e.Sent))
		m.egressBytes.WithLabelValues("received").Add(float64(e.Received))
	}
}

// EventAppended counts an event that this server has recorded.
func (m *Metrics) EventAppended(t events.Type) { m.events.WithLabelValues(string(t)).Inc() }

// WebhookAttempted counts an attempt to deliver an event of this age.
func (m *Metrics) WebhookAttempted(name string, err error, age time.Duration) {
	outcome, delay := webhookOK, time.Duration(0)
	if err != nil {
		outcome, delay = webhookFailed, age
	}
	m.webhookAttempts.WithLabelValues(name, outcome).Inc()
	m.webhookDelay.WithLabelValues(name).Set(delay.Seconds())
}

// WebhookDropped counts an event that was given up.
func (m *Metrics) WebhookDropped(name string) { m.webhookDrops.WithLabelValues(name).Inc() }

// WebhookStopped ends the gauge of a webhook that another server may send now.
func (m *Metrics) WebhookStopped(name string) { m.webhookDelay.DeleteLabelValues(name) }

// ReapedOne counts a sandbox that the reaper deleted this long after its expiry.
func (m *Metrics) ReapedOne(aged bool, lag time.Duration) {
	reason := reapedByIdleness
	if aged {
		reason = reapedByTTL
	}
	m.reaped.WithLabelValues(reason).Inc()
	m.reapLag.Observe(max(lag, 0).Seconds())
}

// Reloaded counts a changed configuration file, which an error refused.
func (m *Metrics) Reloaded(err error) {
	if err != nil {
		m.reloads.WithLabelValues(reloadRefused).Inc()
		m.reloadsOK.Set(0)
		return
	}
	m.reloads.WithLabelValues(reloadOK).Inc()
	m.reloadsOK.Set(1)
}
