package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandgate/sandgate/bench/report"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// The template of the pool is the server's default one but for its name, so
// that both rows are about the same sandbox.
const poolConfig = `
templates:
  - name: ready
    pool: 4
`

// claimToFirstCommand is createToFirstCommand where a started sandbox waits in
// a pool. The server is restarted with the pool and, for the other rows, without it;
// then it deletes the unclaimed sandboxes.
func claimToFirstCommand(ctx context.Context, b *bench) ([]report.Figure, error) {
	if err := b.serveConfig(ctx, poolConfig); err != nil {
		return nil, err
	}
	ours, runc, err := runcCreations(ctx, b, "ready", func() error { return b.full(ctx, "ready") })
	if err := errors.Join(err, b.serve(ctx)); err != nil {
		return nil, err
	}
	return []report.Figure{report.Latency("create → first command, from pool | runc run", ours, runc, 0.5, report.AtMost(1.0/4), report.AtMost(1.0/8))}, nil
}

// full waits until the pool is.
func (b *bench) full(ctx context.Context, template string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the pool was not full within a minute"))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := b.client.GetPoolStatus(ctx, &sandboxv1.GetPoolStatusRequest{Template: template})
		if err != nil {
			return fmt.Errorf("status of the pool: %w", err)
		}
		if s.GetAvailable() == s.GetTarget() {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
