package server

import (
	"context"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
)

// A single failed probe may be chance. unhealthyAfter failures in a row make
// the server not ready, one success makes it ready again.
const (
	probeTimeout   = 5 * time.Second
	unhealthyAfter = 2
)

// watchProvider probes the provider until the server halts, and sets the health
// of SandboxService. That of the whole server, "", does not follow: it makes
// supervisors restart the server, which does not fix a provider.
func (s *Server) watchProvider() {
	p, ok := s.provider.(providers.Prober)
	if !ok {
		return
	}
	ctx, cancel := s.untilHalt()
	defer cancel()
	tick := time.NewTicker(s.cfg.Timing.Probe)
	defer tick.Stop()
	failures := 0
	for {
		err := fault.Catch(func() error { return s.probe(ctx, p) })
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if failures >= unhealthyAfter {
				s.log.InfoContext(ctx, "the provider works again")
			}
			failures = 0
			s.setReady(true)
		default:
			if failures++; failures == unhealthyAfter {
				s.log.WarnContext(ctx, "the provider does not work", "error", err)
				s.setReady(false)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *Server) probe(ctx context.Context, p providers.Prober) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	got, err := p.Probe(ctx)
	s.metrics.StateFree.Set(float64(got.FreeBytes))
	return err
}

func (s *Server) setReady(ready bool) {
	s.unready.Store(!ready)
	status, up := healthv1.HealthCheckResponse_SERVING, 1.0
	if !ready {
		status, up = healthv1.HealthCheckResponse_NOT_SERVING, 0
	}
	s.metrics.ProviderUp.Set(up)
	// It has no effect once the server is stopping.
	s.health.SetServingStatus(sandboxv1.SandboxService_ServiceDesc.ServiceName, status)
}
