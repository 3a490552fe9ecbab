package conformance

import (
	"context"
	"fmt"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

var signalCases = []Case{
	{Name: "C13_signals_by_name", run: signalsByName},
	{Name: "C13_signal_scopes", run: signalScopes},
	{Name: "C13_trapped_and_stopped", run: trappedAndStopped},
	{Name: "C13_signals_that_cannot_be", run: signalsThatCannotBe},
}

// signalsByName: each ends the command, and the end names it.
func signalsByName(ctx context.Context, t T, s *Suite) {
	sandbox := s.sandbox(ctx, t, nil)
	for i, name := range []string{"HUP", "INT", "QUIT", "ILL", "ABRT", "FPE", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM", "BUS", "SYS", "TRAP", "XCPU", "KILL"} {
		p := start(ctx, t, sandbox, sandgate.ExecuteRequest{Shell: "ulimit -c 0; echo ready; exec sleep 100", Timeout: time.Minute})
		untilOutput(t, p, "ready\n")
		sent := name
		if i%2 == 0 {
			sent = "SIG" + name
		}
		if err := p.Signal(ctx, sent, sandgate.Leader); err != nil {
			t.Errorf("%s: %v", sent, err)
		}
		exit, err := p.Wait()
		if err != nil || exit.GetReason() != sandboxv1.ExitReason_EXIT_REASON_KILLED || exit.GetSignal() != "SIG"+name || exit.ExitCode != nil {
			t.Errorf("%s: it ended %v, %v", sent, exit, err)
		}
	}
}

// signalScopes: a leader, a child in its group, and one in a session of its own.
func signalScopes(ctx context.Context, t T, s *Suite) {
	sandbox := s.sandbox(ctx, t, nil)
	look := s.target(ctx, t, nil)
	for _, c := range []struct {
		scope                    sandgate.SignalScope
		leader, member, detached int // how many are left
	}{
		{sandgate.Leader, 0, 1, 1},
		{sandgate.Group, 0, 0, 1},
		{sandgate.Tree, 0, 0, 0},
		{sandboxv1.SignalScope_SIGNAL_SCOPE_UNSPECIFIED, 0, 0, 0},
	} {
		leader, member, detached := marker(), marker(), marker()
		p := start(ctx, t, sandbox, sandgate.ExecuteRequest{Shell: fmt.Sprintf(
			"sleep %s & setsid sh -c 'echo ready; exec sleep %s' & exec sleep %s", member, detached, leader), Timeout: time.Minute})
		untilOutput(t, p, "ready\n")
		// All three may still be on their way to be what they will be.
		eventually(ctx, t, 30*time.Second, "less than three processes", func() bool {
			return look.count(ctx, t, leader)+look.count(ctx, t, member)+look.count(ctx, t, detached) == 3
		})
		if err := p.Signal(ctx, "TERM", c.scope); err != nil {
			t.Errorf("%v: %v", c.scope, err)
		}
		exit, err := p.Wait()
		if err != nil || exit.GetReason() != sandboxv1.ExitReason_EXIT_REASON_KILLED || exit.GetSignal() != "SIGTERM" {
			t.Errorf("%v: it ended %v, %v", c.scope, exit, err)
		}
		eventually(ctx, t, 30*time.Second, fmt.Sprintf("%v: not exactly those that the scope spares", c.scope), func() bool {
			return look.count(ctx, t, leader) == c.leader && look.count(ctx, t, member) == c.member && look.count(ctx, t, detached) == c.detached
		})
		delivered, err := sandbox.Signal(ctx, p.ID(), "KILL", sandgate.Tree)
		if err != nil || delivered != (c.member+c.detached > 0) {
			t.Errorf("%v: kill what is left: %v, %v", c.scope, delivered, err)
		}
		for _, m := range []string{leader, member, detached} {
			look.assertNone(ctx, t, m)
		}
	}
}

func trappedAndStopped(ctx context.Context, t T, s *Suite) {
	sandbox := s.sandbox(ctx, t, nil)
	p := start(ctx, t, sandbox, sandgate.ExecuteRequest{
		Shell: "trap 'echo trapped; exit 42' TERM; trap '' HUP; echo ready; while :; do sleep 0.05; done", Timeout: time.Minute,
	})
	untilOutput(t, p, "ready\n")
	for _, name := range []string{"HUP", "STOP"} {
		if err := p.Signal(ctx, name, sandgate.Leader); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	look := s.target(ctx, t, nil)
	state := fmt.Sprintf("grep State /proc/%d/status", p.Started().GetPid())
	eventually(ctx, t, 30*time.Second, "a command that does not stop", func() bool {
		return look.sh(ctx, t, state).stdout == "State:\tT (stopped)\n"
	})
	for _, name := range []string{"TERM", "CONT"} { // The first waits for the second.
		if err := p.Signal(ctx, name, sandgate.Leader); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	finishes(t, "trapped", p, []byte("trapped\n"), 42)
}

func signalsThatCannotBe(ctx context.Context, t T, s *Suite) {
	sandbox := s.sandbox(ctx, t, nil)
	p := start(ctx, t, sandbox, sandgate.ExecuteRequest{Shell: "read x; exit 7", StdinOpen: true, Timeout: time.Minute})
	for _, name := range []string{"", "SIGNOPE", "NOPE", "SIG", "no such", "-9"} {
		wantReason(t, fmt.Sprintf("signal %q", name), p.Signal(ctx, name, sandgate.Leader), "REQUEST_INVALID")
	}
	wantReason(t, "scope 9", p.Signal(ctx, "TERM", 9), "REQUEST_INVALID")
	_, err := sandbox.Signal(ctx, "never-was", "TERM", sandgate.Leader)
	wantReason(t, "an unknown command", err, "EXEC_NOT_FOUND")
	release(ctx, t, p)
	exit, err := p.Wait()
	if err != nil {
		t.Errorf("%v", err)
	}
	exits(t, "the command", exit, 7)
	if delivered, err := sandbox.Signal(ctx, p.ID(), "TERM", sandgate.Tree); err != nil || delivered {
		t.Errorf("a signal to nobody: %v, %v", delivered, err)
	}
}
