package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/sandgate/sandgate/bench/report"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/test/daemon"
)

// fairConfig bounds the tenant that floods to what leaves the machine for others, with
// a burst that is over soon.
const fairConfig = `
quotas:
  overrides:
  - {tenant: flood, quota: {max_streams: 8, commands_per_minute: 120}}
`

// flooders is how many callers of the other tenant there are. None waits before it
// calls again, whatever the server answers.
const flooders = 64

// executeFair compares commands of one tenant while another calls far beyond its quotas
// with commands while it does not. Both run on the same machine.
func executeFair(ctx context.Context, b *bench) ([]report.Figure, error) {
	dir, err := os.MkdirTemp("", "sandgate-bench-fair-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "tokens")
	tokens, err := daemon.Tokens(ctx, b.binary, file, "quiet", "flood")
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte(fairConfig), 0o600); err != nil {
		return nil, err
	}
	server, err := newBench(ctx, b.binary, append([]string{"--tokens-file", file, "--config", config}, b.flags...), b.scale)
	if err != nil {
		return nil, err
	}
	defer server.close()

	quiet := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+tokens["quiet"])
	flood := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+tokens["flood"])
	for _, tenant := range []context.Context{quiet, flood} {
		remove, err := server.sandbox(tenant, "bench-fair")
		if err != nil {
			return nil, err
		}
		defer remove()
	}
	alone, err := server.paced(quiet)
	if err != nil {
		return nil, err
	}
	// Connections are not the subject: each tenant has its own.
	conn, err := dial(server.address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	other := &bench{client: sandboxv1.NewSandboxServiceClient(conn)}
	flood, stop := context.WithCancelCause(flood)
	var callers sync.WaitGroup
	refused := make(chan struct{}, flooders)
	for range flooders {
		callers.Go(func() {
			spent := false
			for flood.Err() == nil {
				err := complete(flood, other, "bench-fair", "true")
				if !spent && strings.Contains(fmt.Sprint(err), "commands a minute") {
					spent = true
					refused <- struct{}{}
				}
			}
		})
	}
	for range flooders {
		select {
		case <-refused: // The burst is over.
		case <-ctx.Done():
		}
	}
	beside, err := server.paced(quiet)
	stop(nil)
	callers.Wait()
	if err != nil {
		return nil, err
	}
	return []report.Figure{
		report.Latency("Execute true, p99, while another tenant floods the server | while it does not", beside, alone, 0.99, report.AtMost(2), report.Bound{}),
		report.Latency("Execute true, p50, while another tenant floods the server | while it does not", beside, alone, 0.5, report.Bound{}, report.Bound{}),
	}, nil
}

// paced runs commands with pauses, as a tenant does that is within its share, and returns
// their times.
func (b *bench) paced(ctx context.Context) (times report.Samples, err error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	n := b.count(500)
	for i := range n + n/10 {
		<-tick.C
		start := time.Now()
		if err := complete(ctx, b, "bench-fair", "true"); err != nil {
			return nil, err
		}
		if i >= n/10 { // after warming up
			times = append(times, time.Since(start))
		}
	}
	return times, nil
}
