package server

import (
	"context"
	"runtime"
	"strings"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/carrier"
	"github.com/sandgate/sandgate/server/fault"
)

// metrics are the server's own. No label holds a caller's text: methods,
// templates, codes and reasons are known lists.
type metrics struct {
	registry *prometheus.Registry
	rpc      *grpcprom.ServerMetrics

	bytes            *prometheus.CounterVec
	createSeconds    *prometheus.HistogramVec
	createFailures   *prometheus.CounterVec
	createWait       prometheus.Histogram
	startSeconds     prometheus.Histogram
	commandEnds      *prometheus.CounterVec
	gaps             prometheus.Counter
	gapBytes         prometheus.Counter
	dials            *prometheus.CounterVec
	reattachments    *prometheus.CounterVec
	reaped           *prometheus.CounterVec
	reapSeconds      prometheus.Histogram
	reapLag          prometheus.Histogram
	reapFailures     prometheus.Counter
	refused          prometheus.Counter
	suppressed       prometheus.Counter
	auditFailures    prometheus.Counter
	providerUp       prometheus.Gauge
	stateFree        prometheus.Gauge
	countingFailures prometheus.Counter
	egressConns      *prometheus.CounterVec
	egressOpen       prometheus.Gauge
	egressBytes      *prometheus.CounterVec
	reloads          *prometheus.CounterVec
	reloadOK         prometheus.Gauge
}

// Values of the label "path": where a sandbox came from.
const (
	createdCold  = "cold"
	createdPool  = "pool"
	createdFound = "existing"
)

// secondsBuckets range from a file call to a creation that waits for a node.
var secondsBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

func newMetrics(version, provider string) *metrics {
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
	m := &metrics{
		registry: prometheus.NewRegistry(),
		rpc:      grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(grpcprom.WithHistogramBuckets(secondsBuckets))),

		bytes:            counters("transferred_bytes_total", "Content and output that ended calls have moved.", "method"),
		createSeconds:    prometheus.NewHistogramVec(seconds("create_duration_seconds", "Time of successful creations, by where the sandbox came from: cold, pool or existing."), []string{"path"}),
		createFailures:   counters("create_failures_total", "Failed creations, by error reason.", "reason"),
		createWait:       prometheus.NewHistogram(seconds("create_wait_seconds", "Time that creations waited for others, because of the bound of creations at the same time.")),
		startSeconds:     prometheus.NewHistogram(seconds("command_start_duration_seconds", "Time from an Execute call to the start of its command.")),
		commandEnds:      counters("command_ends_total", "Ends of commands that were reported to callers, by exit reason. A command with two readers counts twice.", "reason"),
		gaps:             counter("output_gaps_total", "Gaps that were sent to readers: output that had been dropped before they came."),
		gapBytes:         counter("output_gap_bytes_total", "Bytes of output in such gaps."),
		dials:            counters("agent_dials_total", "Attempts to connect to an agent, by outcome: OK or an error reason.", "outcome"),
		reattachments:    counters("reattachments_total", "Streams whose connection to the agent broke, by outcome: succeeded or failed.", "outcome"),
		reaped:           counters("reaped_total", "Sandboxes that the server deleted by itself, by reason: ttl or idle.", "reason"),
		reapSeconds:      prometheus.NewHistogram(seconds("reap_round_duration_seconds", "Time of the rounds that look for expired sandboxes.")),
		reapLag:          prometheus.NewHistogram(seconds("reap_lag_seconds", "Time from the expiry of a sandbox to its deletion by the server.")),
		reapFailures:     counter("reap_failures_total", "Rounds, and deletions of expired sandboxes, that failed."),
		refused:          counter("credentials_rejected_total", "Calls refused for their credentials."),
		suppressed:       counter("audit_suppressed_total", "Calls refused for their credentials without an audit record and a log line, to bound their number."),
		auditFailures:    counter("audit_failures_total", "Audit records that could not be written."),
		providerUp:       gauge("provider_up", "1 if the last probe of the provider's substrate succeeded."),
		stateFree:        gauge("state_free_bytes", "Free space of the file system that holds sandboxes. -1: not known."),
		countingFailures: counter("count_failures_total", "Scrapes that could not count sandboxes or pools."),
	}
	m.reloads = counters("config_reloads_total", "Changed configuration files, by outcome: OK, or refused while the former one stays in force.", "outcome")
	m.reloadOK = gauge("config_reload_success", "1 if the configuration file is in force as it is now, 0 if it was refused.")
	m.reloadOK.Set(1)
	m.reloads.WithLabelValues(reloadRefused)
	m.egressConns = counters("egress_connections_total", "Connections of sandboxes with the network mode PROXY that have ended or were refused, and refused names, by outcome: OK, broken, unreachable, limit, or why a rule denied it.", "outcome")
	m.egressOpen = gauge("egress_connections", "Open connections of sandboxes with the network mode PROXY.")
	m.egressBytes = counters("egress_bytes_total", "Bytes of ended connections of sandboxes with the network mode PROXY, by direction: sent or received.", "direction")
	m.providerUp.Set(1)
	m.stateFree.Set(-1)
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "sandgate", Name: "build_info", Help: "1, labelled by the versions of server and Go, and by the provider.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version(), "provider": provider},
	})
	build.Set(1)
	for _, outcome := range []string{reattachSucceeded, reattachFailed} {
		m.reattachments.WithLabelValues(outcome)
	}
	for _, reason := range []string{reapedByTTL, reapedByIdleness} {
		m.reaped.WithLabelValues(reason)
	}
	m.registry.MustRegister(m.rpc, m.bytes, m.createSeconds, m.createFailures, m.createWait, m.startSeconds, m.commandEnds, m.gaps, m.gapBytes, m.dials,
		m.reattachments, m.reaped, m.reapSeconds, m.reapLag, m.reapFailures, m.refused, m.suppressed, m.auditFailures,
		m.providerUp, m.stateFree, m.countingFailures, m.reloads, m.reloadOK, m.egressConns, m.egressOpen, m.egressBytes, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Values of labels.
const (
	reloadOK          = "OK"
	reloadRefused     = "refused"
	reattachSucceeded = "succeeded"
	reattachFailed    = "failed"
	reapedByTTL       = "ttl"
	reapedByIdleness  = "idle"
)

// interceptors count the calls of known methods: a caller may invent others.
func (m *metrics) interceptors() (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	known := selector.MatchFunc(func(ctx context.Context, _ interceptors.CallMeta) bool {
		return callOf(ctx).audit.Operation != unknownOperation
	})
	return selector.UnaryServerInterceptor(m.rpc.UnaryServerInterceptor(), known),
		selector.StreamServerInterceptor(m.rpc.StreamServerInterceptor(), known)
}

// ended counts a call that has ended.
func (m *metrics) ended(c *call, resp any, err error, took time.Duration) {
	if n := c.bytes.Load(); n > 0 && c.begun {
		m.bytes.WithLabelValues(c.audit.Operation).Add(float64(n))
	}
	if c.method != sandboxv1.SandboxService_CreateSandbox_FullMethodName || !c.begun {
		return
	}
	if err != nil {
		m.createFailures.WithLabelValues(reasonOf(err)).Inc()
		return
	}
	path := createdFound
	if made, ok := resp.(*sandboxv1.CreateSandboxResponse); ok && made.GetCreated() {
		path = createdCold
		if made.GetSandbox().GetFromPool() {
			path = createdPool
		}
	}
	m.createSeconds.WithLabelValues(path).Observe(took.Seconds())
}

// gap counts dropped output that a reader asked for.
func (m *metrics) gap(g *sandboxv1.Gap) {
	m.gaps.Inc()
	m.gapBytes.Add(float64(g.GetEnd() - g.GetStart()))
}

func (m *metrics) commandEnded(e *sandboxv1.Exited) {
	m.commandEnds.WithLabelValues(exitReason(e)).Inc()
}

// exitReason names the end of a command in logs, records and metrics, such as
// "TIMED_OUT".
func exitReason(e *sandboxv1.Exited) string {
	return strings.TrimPrefix(e.GetReason().String(), "EXIT_REASON_")
}

// dialled counts an attempt to connect to an agent.
func (m *metrics) dialled(ctx context.Context, err error) {
	outcome := "OK"
	if err != nil {
		outcome = fault.ReasonName(fault.From(ctx, err).Reason)
	}
	m.dials.WithLabelValues(outcome).Inc()
}

func (m *metrics) egressOpened() { m.egressOpen.Inc() }

// egressEnded counts a connection of a sandbox that has ended or was refused.
func (m *metrics) egressEnded(outcome string, e carrier.Ended) {
	m.egressConns.WithLabelValues(outcome).Inc()
	if e.Addr != "" {
		m.egressOpen.Dec()
		m.egressBytes.WithLabelValues("sent").Add(float64(e.Sent))
		m.egressBytes.WithLabelValues("received").Add(float64(e.Received))
	}
}

// reapedOne counts a sandbox that the reaper deleted this long after its expiry.
func (m *metrics) reapedOne(aged bool, lag time.Duration) {
	reason := reapedByIdleness
	if aged {
		reason = reapedByTTL
	}
	m.reaped.WithLabelValues(reason).Inc()
	m.reapLag.Observe(max(lag, 0).Seconds())
}
