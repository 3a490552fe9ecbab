package conformance

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// startCases are about commands in numbers.
var startCases = []Case{
	{Name: "C04_many_short_commands", run: manyShortCommands},
	{Name: "C04_many_at_once", run: manyAtOnce},
}

// scaled returns a size of a large case, at least one.
func (s *Suite) scaled(full int64) int64 { return max(int64(float64(full)*s.opts.Scale), 1) }

// manyShortCommands runs 10 000 commands, eight at a time, and none of them may
// leave anything.
func manyShortCommands(ctx context.Context, t T, s *Suite) {
	sandbox, total := s.sandbox(ctx, t, nil), s.scaled(10_000)
	t.Logf("%d commands", total)
	var next, failures atomic.Int64
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for i := next.Add(1); i <= total && failures.Load() < 5; i = next.Add(1) {
				r, err := sandbox.Execute(ctx, sandgate.ExecuteRequest{Shell: fmt.Sprintf("echo %d; exit %d", i, i%100), Timeout: time.Minute})
				if err != nil || string(r.Stdout) != fmt.Sprintf("%d\n", i) || len(r.Stderr) > 0 || sandgate.ExitCode(r.Exit) != int(i%100) {
					failures.Add(1)
					t.Errorf("command %d: %v, %v", i, r, err)
				}
			}
		})
	}
	workers.Wait()
	running, err := sandbox.Processes(ctx, false)
	if err != nil || len(running) > 0 {
		t.Errorf("afterwards these run: %v, %v", running, err)
	}
}

// manyAtOnce starts 1 000 commands, which all wait for each other.
func manyAtOnce(ctx context.Context, t T, s *Suite) {
	total := int(s.scaled(1000))
	t.Logf("%d commands", total)
	// A server may need processes of its own for each command.
	limits := &sandboxv1.Resources{MaxProcesses: int32(3*total + 400)}
	if whole(s.sandbox(ctx, t, nil).Created()) {
		// gVisor's kernel takes its memory from the sandbox: over 1 MiB for a command.
		limits.MemoryBytes = 512<<20 + int64(total)*2<<20
	}
	sandbox := s.sandbox(ctx, t, limits)
	if r, err := sandbox.Execute(ctx, sandgate.ExecuteRequest{Shell: "mkfifo gate"}); err != nil || sandgate.ExitCode(r.Exit) != 0 {
		t.Fatalf("make a gate: %v, %v", r, err)
	}
	var ready, ended sync.WaitGroup
	ready.Add(total)
	for i := range total {
		ended.Go(func() {
			waiting := sync.OnceFunc(ready.Done)
			defer waiting()
			p, err := sandbox.Start(ctx, sandgate.ExecuteRequest{
				Shell: fmt.Sprintf("echo ready %d; : <gate; echo done %d; exit %d", i, i, i%100), Timeout: 4 * time.Minute,
			})
			if err != nil {
				t.Errorf("start %d: %v", i, err)
				return
			}
			defer p.Close()
			var got []byte
			for event, err := range p.Events() {
				if err != nil {
					t.Errorf("command %d: %v", i, err)
					return
				}
				if got = append(got, event.Output.GetData()...); len(got) > 0 {
					waiting()
				}
			}
			if string(got) != fmt.Sprintf("ready %d\ndone %d\n", i, i) || sandgate.ExitCode(p.Exit()) != i%100 {
				t.Errorf("command %d: %q, %v", i, got, p.Exit())
			}
		})
	}
	ready.Wait()
	// While one process holds the gate open, all others pass.
	gate := start(ctx, t, sandbox, sandgate.ExecuteRequest{Shell: "exec 9<>gate; read x", StdinOpen: true, Timeout: 4 * time.Minute})
	ended.Wait()
	release(ctx, t, gate)
	if _, err := gate.Wait(); err != nil {
		t.Errorf("the gate: %v", err)
	}
}
