package sandgate

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/clients/go/fake"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// A connection that breaks when the caller cancels must not prevent the kill: the
// command would keep running for its grace period.
func TestCancelKillsOverACut(t *testing.T) {
	var calls atomic.Int32
	killed := make(chan struct{})
	server := &fake.Server{
		Play: func(r *fake.Run) {
			<-r.Killed
			close(killed)
		},
		Fail: func(method string) error {
			if strings.HasSuffix(method, "/SignalProcess") && calls.Add(1) <= 2 {
				return fake.Error(codes.Unavailable, "AGENT_UNAVAILABLE", "the connection broke")
			}
			return nil
		},
	}
	sandbox := create(t, connect(t, server), "a")
	ctx, cancel := context.WithCancelCause(within(t))
	defer cancel(nil)
	process, err := sandbox.Start(ctx, ExecuteRequest{Shell: "x"})
	if err != nil {
		t.Fatal(err)
	}
	server.Cut()
	cancel(errors.New("enough"))
	if _, err := process.Wait(); !errors.Is(err, ErrCallCancelled) {
		t.Errorf("error %v", err)
	}
	process.Close()
	select {
	case <-killed:
	case <-time.After(30 * time.Second):
		t.Errorf("the command lives on after %d kills", calls.Load())
	}
}

// Cancelling kills the command and keeps its output.
func TestCancelKills(t *testing.T) {
	server := &fake.Server{Play: func(r *fake.Run) {
		r.Stdout("half")
		<-r.Killed
	}}
	sandbox := create(t, connect(t, server), "a")
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(within(t))
	defer cancel(nil)
	process, err := sandbox.Start(ctx, ExecuteRequest{Shell: "x"})
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for event, err := range process.Events() {
		if event.Output != nil {
			out = append(out, event.Output.GetData()...)
			cancel(reason)
			continue
		}
		if !errors.Is(err, ErrCallCancelled) || !errors.Is(err, context.Canceled) || !errors.Is(err, reason) {
			t.Errorf("error %v", err)
		}
	}
	process.Close()
	if string(out) != "half" || process.Exit().GetReason() != sandboxv1.ExitReason_EXIT_REASON_KILLED {
		t.Errorf("got %q, %v", out, process.Exit())
	}
	if diff := cmp.Diff([]string{"SIGKILL TREE"}, server.Run("a", process.ID()).Signals()); diff != "" {
		t.Error(diff)
	}
}

func TestDeadlineKills(t *testing.T) {
	server := &fake.Server{Play: func(r *fake.Run) { <-r.Killed }}
	sandbox := create(t, connect(t, server), "a")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // and the command has begun
	defer cancel()
	result, err := sandbox.Execute(ctx, ExecuteRequest{Shell: "x"})
	if !errors.Is(err, ErrDeadlineExceeded) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	if len(server.Run("a", result.ExecID).Signals()) != 1 {
		t.Error("the command was not killed")
	}
}

func TestCloseKillsWhatItOwns(t *testing.T) {
	server := &fake.Server{Play: func(r *fake.Run) { <-r.Killed }}
	sandbox := create(t, connect(t, server), "a")
	start := func(r ExecuteRequest) *Process {
		process, err := sandbox.Start(within(t), r)
		if err != nil {
			t.Fatal(err)
		}
		return process
	}
	owned := start(ExecuteRequest{Shell: "x"})
	detached := start(ExecuteRequest{Shell: "x", Detach: true})
	attached, err := sandbox.Attach(within(t), detached.ID(), 0, LeaderExit)
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range []*Process{owned, detached, attached} {
		process.Close()
		process.Close()
	}
	if n := len(server.Run("a", owned.ID()).Signals()); n != 1 {
		t.Errorf("the owned command got %d signals", n)
	}
	if n := len(server.Run("a", detached.ID()).Signals()); n != 0 {
		t.Errorf("the detached command got %d signals", n)
	}
	if _, err := owned.Wait(); !errors.Is(err, ErrCallCancelled) {
		t.Errorf("wait after close: %v", err)
	}
}
