package server

import (
	"context"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"google.golang.org/grpc/status"
)

// Metrics is told about every call. It is called from many goroutines and must
// not block.
type Metrics interface {
	// CallStarted is called with the RPC's name.
	CallStarted(method string)
	// CallEnded is called once for every CallStarted, with the gRPC code's
	// name and how long the call took.
	CallEnded(method, code string, took time.Duration)
}

// reportTo feeds Metrics from the middleware's reporter.
func reportTo(m Metrics) interceptors.CommonReportableFunc {
	return func(ctx context.Context, meta interceptors.CallMeta) (interceptors.Reporter, context.Context) {
		m.CallStarted(meta.Method)
		return &callReporter{metrics: m, method: meta.Method}, ctx
	}
}

type callReporter struct {
	interceptors.NoopReporter
	metrics Metrics
	method  string
}

func (r *callReporter) PostCall(err error, took time.Duration) {
	r.metrics.CallEnded(r.method, status.Code(err).String(), took)
}
