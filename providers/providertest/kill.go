package providertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func timeoutEndsIt(ctx context.Context, t *testing.T, s Sandbox) {
	seconds := marker()
	req := shell("echo before; sleep " + seconds)
	req.Timeout = durationpb.New(time.Second)
	began := time.Now()
	r := s.execute(ctx, t, req)
	took := time.Since(began)
	if r.err != nil || r.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT || r.stdout != "before\n" {
		t.Errorf("%v; %q, %q, %v", r.exited, r.stdout, r.stderr, r.err)
	}
	if took < time.Second || took > 5*time.Second {
		t.Errorf("a timeout of 1 s took %v", took)
	}
	s.assertNone(ctx, t, seconds)
}

// timeoutKillsAllThatHide starts descendants that shed all that is inherited.
func timeoutKillsAllThatHide(ctx context.Context, t *testing.T, s Sandbox) {
	seconds := marker()
	script := strings.ReplaceAll(`
sleep N &
setsid sleep N &
(setsid sh -c 'sleep N & sleep N' &) &
env -i /usr/bin/setsid /bin/sh -c 'exec <&- >&- 2>&-; (/bin/sleep N &) ; exec /bin/sleep N' &
nohup sh -c 'trap "" TERM INT HUP; sleep N' >/dev/null 2>&1 &
(cd / && env -i setsid sh -c '(env -i setsid sh -c "(sleep N <&- >&- 2>&- &)" &)') &
wait
sleep N
`, "N", seconds)
	req := shell(script)
	req.Timeout = durationpb.New(time.Second)
	r := s.execute(ctx, t, req)
	if r.err != nil || r.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT {
		t.Errorf("%v; %q, %q, %v", r.exited, r.stdout, r.stderr, r.err)
	}
	s.assertNone(ctx, t, seconds)
}

func cancelKills(ctx context.Context, t *testing.T, s Sandbox) {
	seconds := marker()
	cancelled, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req := shell("setsid sleep " + seconds + " & echo ready; sleep " + seconds)
	req.SandboxId = s.ID
	stream, err := s.Client.Execute(cancelled, req)
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if string(m.GetOutput().GetData()) == "ready\n" {
			break
		}
	}
	cancel(errors.New("the caller has had enough"))
	// Nobody tells the caller when the command is gone, so look until it is.
	deadline := time.Now().Add(10 * time.Second)
	for s.count(ctx, t, seconds) > 0 {
		if time.Now().After(deadline) {
			t.Fatal("it runs on after its caller cancelled")
		}
	}
}

// marker is a number of seconds that no other process sleeps for.
func marker() string { return fmt.Sprintf("10%06d", serial.Add(1)) }

// assertNone fails if a process with the marker in its arguments is alive.
func (s Sandbox) assertNone(ctx context.Context, t *testing.T, marker string) {
	t.Helper()
	if n := s.count(ctx, t, marker); n > 0 {
		t.Errorf("%d processes outlive their command", n)
	}
}

// count counts processes by their arguments, with nothing but a shell's own
// means. The script names the marker in two parts so as not to find itself, and
// a process that has ended but was not reaped has no arguments.
func (s Sandbox) count(ctx context.Context, t *testing.T, marker string) int {
	t.Helper()
	script := fmt.Sprintf(`
m=%s; m=${m}%s; n=0
for f in /proc/[0-9]*/cmdline; do
	if tr '\0' ' ' <"$f" 2>/dev/null | grep -q " $m"; then n=$((n+1)); fi
done
echo $n`, marker[:4], marker[4:])
	var n int
	r := s.sh(ctx, t, script)
	if _, err := fmt.Sscan(r.stdout, &n); err != nil {
		t.Fatalf("count processes: %+v", r)
	}
	return n
}
