package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/sandgate/sandgate/bench/report"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// executeBesideForward compares commands of a sandbox whose agent connection carries a
// Forward at full speed with commands of another sandbox on the same machine, and with
// commands while nothing else runs. The first ratio is the price of the shared connection,
// the second also that of the processor time.
func executeBesideForward(ctx context.Context, b *bench) ([]report.Figure, error) {
	for _, id := range []string{"bench-bulk", "bench-quiet"} {
		remove, err := b.sandbox(ctx, id)
		if err != nil {
			return nil, err
		}
		defer remove()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ports, err := b.listenInside(ctx, "bench-bulk")
	if err != nil {
		return nil, err
	}
	// The caller's own connection to the server is not the subject.
	conn, err := dial(b.address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	other := sandboxv1.NewSandboxServiceClient(conn)

	alone, err := b.commands(ctx, "bench-bulk")
	if err != nil {
		return nil, err
	}
	var figures []report.Figure
	for _, direction := range []struct {
		name string
		run  func(context.Context, sandboxv1.SandboxServiceClient, string, int32, int64) error
		port int32
	}{{"from a port", forwardFrom, ports.source}, {"to a port", forwardTo, ports.sink}} {
		beside, err := b.commandsBeside(ctx, func(ctx context.Context) error {
			return direction.run(ctx, other, "bench-bulk", direction.port, math.MaxInt64)
		})
		if err != nil {
			return nil, err
		}
		figures = append(figures,
			report.Latency("Execute p99 beside forward "+direction.name+" | of another sandbox",
				beside[0], beside[1], 0.99, report.AtMost(2), report.AtMost(1.5)),
			report.Latency("Execute p99 beside forward "+direction.name+" | alone",
				beside[0], alone[0], 0.99, report.Bound{}, report.Bound{}))
	}
	return figures, nil
}

// commandsBeside returns the times of commands in "bench-bulk" and "bench-quiet" while bulk
// runs, which goes on until its context ends.
func (b *bench) commandsBeside(ctx context.Context, bulk func(context.Context) error) ([]report.Samples, error) {
	running, stop := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() { ended <- bulk(running) }()
	times, err := b.commands(ctx, "bench-bulk", "bench-quiet")
	early := len(ended) > 0
	stop(nil)
	if failed := <-ended; early {
		err = errors.Join(err, failed)
	}
	return times, err
}

// commands runs `true` in each sandbox in turn, and returns the times of each.
func (b *bench) commands(ctx context.Context, sandboxes ...string) ([]report.Samples, error) {
	times := make([]report.Samples, len(sandboxes))
	n := b.count(1000)
	for i := range n + n/10 {
		for at, sandbox := range sandboxes {
			start := time.Now()
			if err := complete(ctx, b, sandbox, "true"); err != nil {
				return nil, err
			}
			if i >= n/10 { // after warming up
				times[at] = append(times[at], time.Since(start))
			}
		}
	}
	return times, nil
}
