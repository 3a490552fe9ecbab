package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/sandgate/sandgate/bench/report"
)

// executeObserved compares commands through a server that writes its audit log, is
// scraped each second and exports metrics and 1 % of traces with commands through one
// that does none of that. The two take turns, so that a slow moment of the machine
// meets both.
func executeObserved(ctx context.Context, b *bench) ([]report.Figure, error) {
	collector, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := grpc.NewServer()
	collectortrace.RegisterTraceServiceServer(s, acceptTraces{})
	collectormetrics.RegisterMetricsServiceServer(s, acceptMetrics{})
	go func() { _ = s.Serve(collector) }()
	defer s.Stop()

	plain, err := newBench(ctx, b.binary, slices.Concat(b.flags, []string{"--audit-file", os.DevNull}), b.scale)
	if err != nil {
		return nil, err
	}
	defer plain.close()
	full, socket, err := newObserved(ctx, b, collector.Addr().String())
	if err != nil {
		return nil, err
	}
	defer full.close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go scrape(ctx, socket)

	for _, server := range []*bench{plain, full} {
		remove, err := server.sandbox(ctx, "bench-observed")
		if err != nil {
			return nil, err
		}
		defer remove()
	}
	var with, without report.Samples
	n := b.count(2000)
	for i := range n + n/10 {
		for _, one := range []struct {
			server *bench
			times  *report.Samples
		}{{full, &with}, {plain, &without}} {
			start := time.Now()
			if err := complete(ctx, one.server, "bench-observed", "true"); err != nil {
				return nil, err
			}
			if i >= n/10 { // after warming up
				*one.times = append(*one.times, time.Since(start))
			}
		}
	}
	return []report.Figure{
		report.Latency("Execute true, p50, with metrics, 1 % of traces and audit | without", with, without, 0.5, report.AtMost(1.05), report.Bound{}),
	}, nil
}

// newObserved starts a server that is observed, and returns the socket of its metrics.
func newObserved(ctx context.Context, b *bench, collector string) (*bench, string, error) {
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + collector,
		"OTEL_TRACES_SAMPLER":         "parentbased_traceidratio",
		"OTEL_TRACES_SAMPLER_ARG":     "0.01",
		"OTEL_METRIC_EXPORT_INTERVAL": "1000",
	} {
		if err := os.Setenv(name, value); err != nil {
			return nil, "", err
		}
		defer func() { _ = os.Unsetenv(name) }()
	}
	socket := filepath.Join(b.dir, "admin.sock")
	full, err := newBench(ctx, b.binary, slices.Concat(b.flags, []string{"--admin-listen", "unix://" + socket}), b.scale)
	return full, socket, err
}

// scrape reads the metrics each second until ctx ends.
func scrape(ctx context.Context, socket string) {
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	for ctx.Err() == nil {
		if err := scrapeOnce(ctx, &client); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "bench: the metrics could not be read:", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func scrapeOnce(ctx context.Context, client *http.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sandgate/metrics", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// acceptTraces and acceptMetrics are a collector that keeps nothing.
type (
	acceptTraces struct {
		collectortrace.UnimplementedTraceServiceServer
	}
	acceptMetrics struct {
		collectormetrics.UnimplementedMetricsServiceServer
	}
)

func (acceptTraces) Export(context.Context, *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	return &collectortrace.ExportTraceServiceResponse{}, nil
}

func (acceptMetrics) Export(context.Context, *collectormetrics.ExportMetricsServiceRequest) (*collectormetrics.ExportMetricsServiceResponse, error) {
	return &collectormetrics.ExportMetricsServiceResponse{}, nil
}
