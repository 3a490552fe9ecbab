package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"

	"github.com/sandgate/sandgate/bench/report"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// executeLatency compares Execute of `true`, through server and agent, with
// os/exec of the same command on the host, both with both outputs collected.
// The two alternate, so that a slow moment of the machine meets both.
func executeLatency(ctx context.Context, b *bench) ([]report.Figure, error) {
	remove, err := b.sandbox(ctx, "bench-execute")
	if err != nil {
		return nil, err
	}
	defer remove()
	var ours, host report.Samples
	n := b.count(2000)
	for i := range n + n/10 {
		start := time.Now()
		if err := complete(ctx, b, "bench-execute", "true"); err != nil {
			return nil, err
		}
		took := time.Since(start)
		start = time.Now()
		if err := onHost(ctx, "true"); err != nil {
			return nil, err
		}
		if i < n/10 {
			continue // warming up
		}
		ours, host = append(ours, took), append(host, time.Since(start))
	}
	return []report.Figure{
		report.Latency("Execute true, p50 | os/exec", ours, host, 0.5, report.AtMost(1.85), report.AtMost(1.6)),
		report.Latency("Execute true, p99 | os/exec", ours, host, 0.99, report.Bound{}, report.Bound{}),
	}, nil
}

// onHost runs a program of this machine to its end and takes its output.
func onHost(ctx context.Context, program string) error {
	cmd := exec.CommandContext(ctx, program)
	cmd.Stdout, cmd.Stderr = new(bytes.Buffer), new(bytes.Buffer)
	return cmd.Run()
}

// complete runs an argv to its end. A command that did not end with code 0 is an
// error.
func complete(ctx context.Context, b *bench, sandbox string, argv ...string) error {
	return stream(ctx, b, sandbox, func([]byte) {}, argv...)
}

func stream(ctx context.Context, b *bench, sandbox string, each func([]byte), argv ...string) error {
	call, err := b.client.Execute(ctx, &sandboxv1.ExecuteRequest{
		SandboxId: sandbox,
		Command:   &sandboxv1.ExecuteRequest_Argv{Argv: &sandboxv1.Argv{Args: argv}},
	})
	if err != nil {
		return err
	}
	var exited *sandboxv1.Exited
	for {
		event, err := call.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		switch e := event.GetEvent().(type) {
		case *sandboxv1.ExecuteResponse_Output:
			each(e.Output.GetData())
		case *sandboxv1.ExecuteResponse_Exited:
			exited = e.Exited
		}
	}
	if exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_EXITED || exited.GetExitCode() != 0 {
		return fmt.Errorf("command %q ended with %v", argv, exited)
	}
	return nil
}

// A template allows no more processes than its default without max_resources.
const concurrentConfig = `
templates:
  - name: default
    max_resources: {max_processes: -1}
`

// concurrentExecutes runs 1 000 commands at once, each with its own output, and
// counts errors and wrong bytes.
func concurrentExecutes(ctx context.Context, b *bench) ([]report.Figure, error) {
	n := b.count(1000)
	if err := b.serveConfig(ctx, concurrentConfig); err != nil {
		return nil, err
	}
	remove, err := b.sandboxWith(ctx, "bench-concurrent", &sandboxv1.SandboxSpec{
		Resources: &sandboxv1.Resources{MaxProcesses: int32(n + 200)},
	})
	if err != nil {
		return nil, err
	}
	defer remove()
	if err := complete(ctx, b, "bench-concurrent", "mkfifo", "/tmp/gate"); err != nil {
		return nil, err
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		wrong int
		first error
	)
	// Every command waits in open(2) of the gate, so that all are running at the
	// same time before the first one ends. Opening the gate for a while lets
	// those through that are between the test and the open.
	const (
		script = `echo "$1"; [ -e /tmp/open ] || read x </tmp/gate; echo "end $1"`
		open   = `touch /tmp/open; exec 3<>/tmp/gate; sleep 2`
	)
	start := time.Now()
	all := make(chan struct{})
	started := make(chan struct{}, n)
	for i := range n {
		wg.Go(func() {
			seen := false
			var out []byte
			err := stream(ctx, b, "bench-concurrent", func(p []byte) {
				out = append(out, p...)
				if !seen {
					seen = true
					started <- struct{}{}
				}
			}, "sh", "-c", script, "sh", fmt.Sprint(i))
			if err == nil && string(out) != fmt.Sprintf("%d\nend %d\n", i, i) {
				err = fmt.Errorf("command %d: output %q", i, out)
			}
			if err != nil {
				mu.Lock()
				wrong++
				if first == nil {
					first = err
				}
				mu.Unlock()
				started <- struct{}{}
			}
		})
	}
	go func() {
		for range n {
			<-started
		}
		close(all)
	}()
	select {
	case <-all:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	running := time.Since(start)
	if err := complete(ctx, b, "bench-concurrent", "sh", "-c", open); err != nil {
		return nil, err
	}
	wg.Wait()
	f := report.Figure{
		What:   fmt.Sprintf("%d commands at once", n),
		Ours:   fmt.Sprintf("%d wrong", wrong),
		Theirs: fmt.Sprintf("%.1f s to start", running.Seconds()),
	}
	if wrong > 0 {
		return []report.Figure{f}, fmt.Errorf("%d of %d commands failed, the first with: %w", wrong, n, first)
	}
	return []report.Figure{f}, nil
}
