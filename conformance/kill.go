package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func timeoutEndsIt(ctx context.Context, t T, s Sandbox) {
	seconds := marker()
	req := shell("echo before; sleep " + seconds)
	req.Timeout = durationpb.New(3 * time.Second) // in which "before" comes, however busy the machine
	began := time.Now()
	r := s.execute(ctx, t, req)
	took := time.Since(began)
	if r.err != nil || r.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT || r.stdout != "before\n" {
		t.Errorf("%v; %q, %q, %v", r.exited, r.stdout, r.stderr, r.err)
	}
	if took < 3*time.Second || took > 30*time.Second {
		t.Errorf("a timeout of 3 s took %v", took)
	}
	s.assertNone(ctx, t, seconds)
}

func timeoutKillsAllThatHide(ctx context.Context, t T, s Sandbox) {
	seconds := marker()
	req := shell(hiding(seconds))
	req.Timeout = durationpb.New(time.Second)
	r := s.execute(ctx, t, req)
	if r.err != nil || r.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT {
		t.Errorf("%v; %q, %q, %v", r.exited, r.stdout, r.stderr, r.err)
	}
	s.assertNone(ctx, t, seconds)
}

// hiding is a script whose descendants shed all that is inherited: session,
// parents, descriptors and environment.
func hiding(seconds string) string {
	return strings.ReplaceAll(`
sleep N &
setsid sleep N &
(setsid sh -c 'sleep N & sleep N' &) &
env -i /usr/bin/setsid /bin/sh -c 'exec <&- >&- 2>&-; (/bin/sleep N &) ; exec /bin/sleep N' &
nohup sh -c 'trap "" TERM INT HUP; sleep N' >/dev/null 2>&1 &
(cd / && env -i setsid sh -c '(env -i setsid sh -c "(sleep N <&- >&- 2>&- &)" &)') &
wait
sleep N
`, "N", seconds)
}

func cancelKills(ctx context.Context, t T, s Sandbox) {
	seconds := marker()
	cancelled, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req := shell("setsid sleep " + seconds + " & echo ready; sleep " + seconds)
	req.SandboxId = s.ID
	stream, err := s.Client.Execute(cancelled, req)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("%v", err)
		}
		if string(m.GetOutput().GetData()) == "ready\n" {
			break
		}
	}
	cancel(errors.New("the caller has had enough"))
	// The caller gets no event for the end of the command, so poll for it.
	deadline := time.Now().Add(30 * time.Second)
	for s.count(ctx, t, seconds) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("it runs on after its caller cancelled")
		}
	}
}

// marker is a number of seconds that no other process sleeps for, also none of
// another run whose sandboxes show each other's processes. Any sleep takes it: it
// fits into 31 bits.
func marker() string { return fmt.Sprintf("1%05d%04d", base, serial.Add(1)%10_000) }

// assertNone fails if a process with the marker in its arguments is alive.
func (s Sandbox) assertNone(ctx context.Context, t T, marker string) {
	t.Helper()
	if n := s.count(ctx, t, marker); n > 0 {
		t.Errorf("%d processes outlive their command", n)
	}
}

// count counts processes by their arguments, with nothing but the smallest
// tools. The pattern does not match itself, and a process that has ended but was
// not reaped has no arguments.
func (s Sandbox) count(ctx context.Context, t T, marker string) int {
	t.Helper()
	n, r := s.tryCount(ctx, t, marker)
	if n < 0 {
		t.Fatalf("count processes: %v", r)
	}
	return n
}

// tryCount is count for a sandbox whose process limit may be reached. In that
// case it returns -1, or an error on the result's standard error.
func (s Sandbox) tryCount(ctx context.Context, t T, marker string) (int, result) {
	t.Helper()
	script := fmt.Sprintf(`cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\n\0' ' \n' | grep -c "[%s]%s"; exit 0`, marker[:1], marker[1:])
	r := s.execute(ctx, t, shell(script))
	var n int
	if _, err := fmt.Sscan(r.stdout, &n); err != nil {
		n = -1
	}
	return n, r
}

var (
	base   = rand.IntN(100_000)
	serial atomic.Int64
)
