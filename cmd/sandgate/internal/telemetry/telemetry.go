// Package telemetry exports a server's spans and metrics by OTLP.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// flushTime bounds the last export of a server that stops.
const flushTime = 3 * time.Second

// Exporter exports spans and metrics by OTLP as the standard environment variables
// OTEL_* configure it, and nothing if they name no endpoint. Exports run in the
// background: no call waits for one, and a full queue drops spans.
type Exporter struct {
	resource *resource.Resource
	log      *slog.Logger
	traces   *sdktrace.TracerProvider // nil: none
	metrics  *metric.MeterProvider    // nil: none

	spans, exported prometheus.Counter
	failures        *prometheus.CounterVec
}

// Names of signals in the variables OTEL_*.
const (
	signalTraces  = "TRACES"
	signalMetrics = "METRICS"
)

// Open begins to export the spans of a server of this version. Its metrics follow with
// Watch.
func Open(ctx context.Context, version string, log *slog.Logger) (*Exporter, error) {
	e := &Exporter{
		log:      log,
		spans:    prometheus.NewCounter(prometheus.CounterOpts{Name: "sandgate_trace_spans_total", Help: "Sampled spans that have ended."}),
		exported: prometheus.NewCounter(prometheus.CounterOpts{Name: "sandgate_trace_spans_exported_total", Help: "Spans that the OTLP endpoint has accepted. The others are queued, or lost."}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sandgate_otlp_export_failures_total", Help: "Failed exports to the OTLP endpoint, by signal: traces or metrics."}, []string{"signal"}),
	}
	on, err := otlpEnabled(signalTraces)
	if err != nil {
		return nil, err
	}
	if e.resource, err = resource.New(ctx, resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "sandgate"), attribute.String("service.version", version)),
		resource.WithFromEnv()); err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	if !on {
		return e, nil
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_*: %w", err)
	}
	e.traces = sdktrace.NewTracerProvider(sdktrace.WithResource(e.resource), sdktrace.WithSpanProcessor(countedSpans{
		sdktrace.NewBatchSpanProcessor(&countedExporter{SpanExporter: exporter, exported: e.exported, outcome: e.outcome("traces")}), e.spans,
	}))
	return e, nil
}

// Tracer returns the provider of spans, or nil.
func (e *Exporter) Tracer() trace.TracerProvider {
	if e.traces == nil {
		return nil
	}
	return e.traces
}

// Watch adds the exporter's own metrics to r, and begins to export r.
func (e *Exporter) Watch(ctx context.Context, r *prometheus.Registry) error {
	r.MustRegister(e.spans, e.exported, e.failures)
	if on, err := otlpEnabled(signalMetrics); !on {
		return err
	}
	exporter, err := otlpmetricgrpc.New(ctx)
	if err != nil {
		return fmt.Errorf("OTEL_EXPORTER_OTLP_*: %w", err)
	}
	counted := countedMetrics{Exporter: exporter, outcome: e.outcome("metrics")}
	e.metrics = metric.NewMeterProvider(metric.WithResource(e.resource), metric.WithReader(metric.NewPeriodicReader(counted,
		metric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(r))))))
	return nil
}

// Close exports what is left, for a short time.
func (e *Exporter) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	// A failure was counted and logged.
	if e.traces != nil {
		_ = e.traces.Shutdown(ctx)
	}
	if e.metrics != nil {
		_ = e.metrics.Shutdown(ctx)
	}
}

// outcome returns a function that counts failed exports, and logs the first and the
// last of several in a row.
func (e *Exporter) outcome(signal string) func(error) {
	failed := e.failures.WithLabelValues(signal)
	var down atomic.Bool
	return func(err error) {
		if err == nil {
			if down.CompareAndSwap(true, false) {
				e.log.Info("the OTLP endpoint accepts data again", "signal", signal)
			}
			return
		}
		failed.Inc()
		if down.CompareAndSwap(false, true) {
			e.log.Warn("the OTLP endpoint does not accept data; calls are not affected", "signal", signal, "error", err)
		}
	}
}

// otlpEnabled reports whether the environment configures the export of a signal.
func otlpEnabled(signal string) (bool, error) {
	if os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return false, nil
	}
	switch which := os.Getenv("OTEL_" + signal + "_EXPORTER"); which {
	case "none":
		return false, nil
	case "", "otlp":
	default:
		return false, fmt.Errorf("OTEL_%s_EXPORTER=%s: this server has the exporters otlp and none", signal, which)
	}
	if cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")) == "" {
		return false, nil
	}
	switch p := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")); p {
	case "", "grpc":
		return true, nil
	default:
		return false, errors.New("OTEL_EXPORTER_OTLP_PROTOCOL=" + p + ": this server exports with grpc; set that, and the endpoint's port for it (usually 4317)")
	}
}

// countedSpans counts the spans that end.
type countedSpans struct {
	sdktrace.SpanProcessor
	ended prometheus.Counter
}

func (c countedSpans) OnEnd(s sdktrace.ReadOnlySpan) {
	c.ended.Inc()
	c.SpanProcessor.OnEnd(s)
}

// countedExporter reports the outcome of exports. It returns no error, which the SDK
// would print.
type countedExporter struct {
	sdktrace.SpanExporter
	exported prometheus.Counter
	outcome  func(error)
}

func (e *countedExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		e.exported.Add(float64(len(spans)))
	}
	e.outcome(err)
	return nil
}

type countedMetrics struct {
	metric.Exporter
	outcome func(error)
}

func (e countedMetrics) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	e.outcome(e.Exporter.Export(ctx, m))
	return nil
}
