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

// reportTo feeds Metrics from the middleware's reporter. Methods that the server
// does not have are "unknown".
func reportTo(m Metrics) interceptors.CommonReportableFunc {
	return func(ctx context.Context, _ interceptors.CallMeta) (interceptors.Reporter, context.Context) {
		method := callOf(ctx).audit.Operation
		m.CallStarted(method)
		return &callReporter{metrics: m, method: method}, ctx
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
