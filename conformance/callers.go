package conformance

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// callerCases are about callers that go away, and children that stay.
var callerCases = []Case{
	{Name: "C08_grace_of_a_lost_caller", run: graceOfALostCaller},
	{Name: "C08_attach_ends_the_grace", run: attachEndsTheGrace},
	{Name: "C08_detached_runs_on", run: detachedRunsOn},
	{Name: "C10_background_child", run: backgroundChild},
}

var errGone = errors.New("the caller has had enough")

// abandon starts a command, waits until it has printed "ready", and goes away.
func (s *Suite) abandon(ctx context.Context, t T, req *sandboxv1.ExecuteRequest) {
	t.Helper()
	req.SandboxId, req.ExecId = s.sandbox(ctx, t, nil).ID(), s.execID()
	gone, leave := context.WithCancelCause(ctx)
	defer leave(errGone)
	stream, err := s.stub.Execute(gone, req)
	if err != nil {
		t.Fatalf("execute: %v", err)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("execute: %v", err)
		}
		if string(m.GetOutput().GetData()) == "ready\n" {
			return
		}
	}
}

// eventually looks until f holds.
func eventually(ctx context.Context, t T, within time.Duration, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !f(); {
		if time.Now().After(deadline) || ctx.Err() != nil {
			t.Fatalf("after %v there is still: %s", within, what)
		}
	}
}

func graceOfALostCaller(ctx context.Context, t T, s *Suite) {
	const grace = 3 * time.Second
	seconds := marker()
	req := shell("setsid sleep " + seconds + " & echo ready; sleep " + seconds)
	req.DisconnectGrace = durationpb.New(grace)
	s.abandon(ctx, t, req)
	sandbox := s.target(ctx, t, nil)
	eventually(ctx, t, grace+30*time.Second, "a command whose grace ended", func() bool { return sandbox.count(ctx, t, seconds) == 0 })
	// By the sandbox's own clock, whatever else this machine had to do.
	r := s.attach(ctx, t, sandbox, req.GetExecId(), 0)
	if wall := r.exited.GetWallTime().AsDuration(); r.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_KILLED || wall < grace || wall > grace+15*time.Second {
		t.Errorf("with a grace of %v it ended %v", grace, r)
	}
}

func attachEndsTheGrace(ctx context.Context, t T, s *Suite) {
	req := shell("echo ready; sleep 6; echo done; exit 7")
	req.DisconnectGrace = durationpb.New(4 * time.Second)
	s.abandon(ctx, t, req)
	p, err := s.sandbox(ctx, t, nil).Attach(ctx, req.GetExecId(), 0, sandgate.LeaderExit)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	t.Cleanup(p.Close)
	finishes(t, "after the grace", p, []byte("ready\ndone\n"), 7)
}

func detachedRunsOn(ctx context.Context, t T, s *Suite) {
	req := shell("echo ready; sleep 1; echo done; exit 7")
	req.Detach = true
	s.abandon(ctx, t, req)
	p, err := s.sandbox(ctx, t, nil).Attach(ctx, req.GetExecId(), 6, sandgate.LeaderExit)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	t.Cleanup(p.Close)
	finishes(t, "detached", p, []byte("done\n"), 7)
}

// backgroundChild holds the output open beyond the command's end.
func backgroundChild(ctx context.Context, t T, s *Suite) {
	sandbox, seconds := s.sandbox(ctx, t, nil), marker()
	look, gate := s.target(ctx, t, nil), s.workdir(ctx, t, sandbox)+"/gate"
	// The child waits until this call has come back.
	r, err := sandbox.Execute(ctx, sandgate.ExecuteRequest{
		Shell:   "(until [ -e " + gate + " ]; do sleep 0.05; done; echo late) & sleep " + seconds + " & echo now; exit 7",
		Timeout: time.Minute,
	})
	if err != nil || string(r.Stdout) != "now\n" || !r.Exit.GetOutputOpen() {
		t.Fatalf("%v, %v", r, err)
	}
	exits(t, "the command", r.Exit, 7)
	listed := false
	processes, err := sandbox.Processes(ctx, true)
	for _, p := range processes {
		listed = listed || p.GetExecId() == r.ExecID && p.GetLiveProcesses() > 0
	}
	if err != nil || !listed {
		t.Errorf("its children are not listed: %v, %v", processes, err)
	}
	p, err := sandbox.Attach(ctx, r.ExecID, r.Exit.GetPosition(), sandgate.StreamsEnd)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	t.Cleanup(p.Close)
	look.sh(ctx, t, "touch "+gate)
	untilOutput(t, p, "late\n")
	if delivered, err := sandbox.Signal(ctx, r.ExecID, "SIGKILL", sandgate.Tree); err != nil || !delivered {
		t.Errorf("kill what is left: %v, %v", delivered, err)
	}
	exit, err := p.Wait()
	if err != nil {
		t.Errorf("wait for the streams' end: %v", err)
	}
	exits(t, "the streams' end", exit, 7)
	look.assertNone(ctx, t, seconds)
}
