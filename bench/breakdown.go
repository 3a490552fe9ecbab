package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sandgate/sandgate/bench/report"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// executeBreakdown splits the time of an Execute of `true` into stages, by the clocks
// of client and agent, which are the same clock with the local provider. For
// comparison it adds a call without a command, to the server and to the agent, and
// os/exec on the host.
func executeBreakdown(ctx context.Context, b *bench) ([]report.Figure, error) {
	const sandbox = "bench-breakdown"
	remove, err := b.sandbox(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	defer remove()
	var there, runs, back, whole, server, agent, host report.Samples
	n := b.count(1000)
	for i := range n + n/10 {
		e, err := timedExecute(ctx, b.client, sandbox)
		if err != nil {
			return nil, err
		}
		start := time.Now()
		if _, err := b.client.GetServerInfo(ctx, &sandboxv1.GetServerInfoRequest{}); err != nil {
			return nil, err
		}
		tookServer := time.Since(start)
		start = time.Now()
		if _, err := b.client.StatFile(ctx, &sandboxv1.StatFileRequest{SandboxId: sandbox, Path: "/workspace"}); err != nil {
			return nil, err
		}
		tookAgent := time.Since(start)
		start = time.Now()
		if err := onHost(ctx, "true"); err != nil {
			return nil, err
		}
		if i < n/10 {
			continue // warming up
		}
		host = append(host, time.Since(start))
		server, agent = append(server, tookServer), append(agent, tookAgent)
		there, runs = append(there, e.began.Sub(e.called)), append(runs, e.ended.Sub(e.began))
		back, whole = append(back, e.told.Sub(e.ended)), append(whole, e.told.Sub(e.called))
	}
	line := func(what string, s report.Samples) report.Figure {
		return report.Figure{What: what, Ours: microseconds(s.Quantile(0.5)), Theirs: microseconds(s.Quantile(0.99))}
	}
	return []report.Figure{
		line("breakdown (p50, p99): called → agent starts it", there),
		line("  → agent has seen its end", runs),
		line("  → client has `exited`", back),
		line("  the whole", whole),
		line("beside: a call to the server", server),
		line("  a call through to the agent", agent),
		line("  os/exec on the host", host),
	}, nil
}

// moments are the times of one Execute.
type moments struct{ called, began, ended, told time.Time }

func timedExecute(ctx context.Context, c sandboxv1.SandboxServiceClient, sandbox string) (moments, error) {
	m := moments{called: time.Now()}
	call, err := c.Execute(ctx, &sandboxv1.ExecuteRequest{
		SandboxId: sandbox, Command: &sandboxv1.ExecuteRequest_Argv{Argv: &sandboxv1.Argv{Args: []string{"true"}}},
	})
	if err != nil {
		return m, err
	}
	for {
		e, err := call.Recv()
		switch {
		case errors.Is(err, io.EOF):
			if m.told.IsZero() {
				return m, errors.New("a stream without an end")
			}
			return m, nil
		case err != nil:
			return m, err
		}
		if s := e.GetStarted(); s != nil {
			m.began = s.GetStartTime().AsTime()
		}
		if x := e.GetExited(); x != nil {
			m.told, m.ended = time.Now(), x.GetEndTime().AsTime()
		}
	}
}

func microseconds(d time.Duration) string { return fmt.Sprintf("%d µs", d.Microseconds()) }
