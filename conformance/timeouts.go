package conformance

import (
	"context"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

var timeoutCases = []Case{
	{Name: "C09_shortest_timeouts", run: shortestTimeouts},
	{Name: "C09_no_timeout_and_the_longest", run: longestTimeouts},
	{Name: "C09_refused_timeouts", run: refusedTimeouts},
	{Name: "C09_timeout_at_the_natural_end", run: timeoutAtTheEnd},
	{Name: "C09_kill_kills_all_that_hide", run: killKillsAllThatHide},
}

func timed(script string, timeout *durationpb.Duration) *sandboxv1.ExecuteRequest {
	r := shell(script)
	r.Timeout = timeout
	return r
}

func shortestTimeouts(ctx context.Context, t T, s *Suite) {
	sandbox := s.target(ctx, t, nil)
	for _, timeout := range []time.Duration{time.Nanosecond, time.Microsecond, time.Millisecond, 20 * time.Millisecond} {
		seconds := marker()
		began := time.Now()
		r := sandbox.execute(ctx, t, timed("sleep "+seconds+" & sleep "+seconds, durationpb.New(timeout)))
		if r.err != nil || r.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT || r.exited.ExitCode != nil {
			t.Errorf("a timeout of %v: %v", timeout, r)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("a timeout of %v took %v", timeout, took)
		}
		sandbox.assertNone(ctx, t, seconds)
	}
}

// longestTimeouts must neither end at once by an overflow nor be cut silently.
func longestTimeouts(ctx context.Context, t T, s *Suite) {
	sandbox := s.target(ctx, t, nil)
	largest := &durationpb.Duration{Seconds: 315_576_000_000} // what a Duration can hold
	for _, timeout := range []*durationpb.Duration{{}, durationpb.New(math.MaxInt64), largest, nil} {
		r := sandbox.execute(ctx, t, timed("exit 3", timeout))
		if limit := s.info.GetLimits().GetMaxTimeout(); limit != nil && r.err != nil {
			wantReason(t, fmt.Sprintf("timeout %v where the largest is %v", timeout, limit.AsDuration()), r.err, "REQUEST_INVALID")
			continue
		}
		if r.code() != 3 {
			t.Errorf("timeout %v: %v", timeout, r)
		}
	}
}

func refusedTimeouts(ctx context.Context, t T, s *Suite) {
	sandbox := s.target(ctx, t, nil)
	for _, timeout := range []*durationpb.Duration{
		{Seconds: -1}, {Nanos: -1}, {Nanos: 2_000_000_000}, {Seconds: 1, Nanos: -1}, {Seconds: math.MaxInt64},
	} {
		r := sandbox.execute(ctx, t, timed("exit 3", timeout))
		wantReason(t, fmt.Sprintf("timeout %v", timeout), r.err, "REQUEST_INVALID")
	}
}

// timeoutAtTheEnd lets both ends meet. Either may win; but what is said must be
// one of them, whole.
func timeoutAtTheEnd(ctx context.Context, t T, s *Suite) {
	sandbox, chance := s.target(ctx, t, nil), s.chance("C09_timeout_at_the_natural_end")
	ends := map[sandboxv1.ExitReason]int{}
	for range 20 {
		timeout := 100*time.Millisecond + time.Duration(chance.Int64N(int64(20*time.Millisecond)))
		r := sandbox.execute(ctx, t, timed("echo out; sleep 0.1; exit 3", durationpb.New(timeout)))
		wall := r.exited.GetWallTime().AsDuration()
		switch reason := r.exited.GetReason(); {
		case r.err != nil || r.stdout != "out\n" && wall > 50*time.Millisecond && reason == sandboxv1.ExitReason_EXIT_REASON_EXITED:
			t.Errorf("timeout %v: %v", timeout, r)
		case reason == sandboxv1.ExitReason_EXIT_REASON_EXITED:
			if r.exited.GetExitCode() != 3 || r.exited.GetSignal() != "" {
				t.Errorf("timeout %v: %v", timeout, r)
			}
		case reason == sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT:
			if r.exited.ExitCode != nil || wall < timeout {
				t.Errorf("timeout %v: %v", timeout, r)
			}
		default:
			t.Errorf("timeout %v: %v", timeout, r)
		}
		ends[r.exited.GetReason()]++
	}
	t.Logf("%v", ends)
}

func killKillsAllThatHide(ctx context.Context, t T, s *Suite) {
	seconds := marker()
	p := start(ctx, t, s.sandbox(ctx, t, nil), sandgate.ExecuteRequest{Shell: "echo ready\n" + hiding(seconds), Timeout: time.Minute})
	untilOutput(t, p, "ready\n")
	look := s.target(ctx, t, nil)
	eventually(ctx, t, 20*time.Second, "somebody who has not hidden yet", func() bool { return look.count(ctx, t, seconds) >= 8 })
	if err := p.Signal(ctx, "SIGKILL", sandgate.Tree); err != nil {
		t.Errorf("kill: %v", err)
	}
	exit, err := p.Wait()
	if err != nil || exit.GetReason() != sandboxv1.ExitReason_EXIT_REASON_KILLED {
		t.Errorf("it ended %v, %v", exit, err)
	}
	look.assertNone(ctx, t, seconds)
}
