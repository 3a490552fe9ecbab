package conformance

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func forkBomb(ctx context.Context, t T, s Sandbox) {
	seconds := marker()
	req := shell("sleep " + seconds + " & b() { b | b & }; b; sleep " + seconds)
	req.Timeout = durationpb.New(3 * time.Second)
	r := s.execute(ctx, t, req)
	if r.err != nil {
		t.Fatalf("%v", r.err)
	}
	switch r.exited.GetReason() {
	case sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT, sandboxv1.ExitReason_EXIT_REASON_EXITED, sandboxv1.ExitReason_EXIT_REASON_SIGNALED:
	default:
		t.Errorf("%v", r.exited)
	}
	if r.exited.GetReason() == sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT {
		// The end does not wait for ever for the last of so many, and until they
		// are gone there may be no room for those that count.
		eventually(ctx, t, 30*time.Second, "a process of the bomb", func() bool {
			n, said := s.tryCount(ctx, t, seconds)
			return n == 0 && said.stderr == ""
		})
	}
	// If the sandbox can read its counter, the caller gets the reason. On a slow
	// machine the bomb may not have come as far.
	seen := s.sh(ctx, t, "cat /sys/fs/cgroup/pids.events || cat /sys/fs/cgroup/pids/pids.events")
	if seen.code() == 0 && strings.TrimSpace(seen.stdout) != "max 0" && !strings.Contains(r.exited.GetMessage(), "limit of 128 processes") {
		t.Errorf("the end says nothing of the limit: %v; %s", r.exited, seen.stdout)
	}
}

// noProcessLeft: while the sandbox can start no process, its agent still serves files,
// many at a time, for which it needs threads. Afterwards commands run again.
func noProcessLeft(ctx context.Context, t T, s Sandbox) {
	fill := s.sh(ctx, t, "i=0; while [ $i -lt 200 ]; do sleep 5 >/dev/null 2>&1 & i=$((i+1)); done")
	if fill.code() == 0 {
		t.Errorf("200 processes fit into 128")
	}
	const callers = 64
	data := noise(1 << 20)
	failed := make(chan error, callers)
	for i := range callers {
		go func() { failed <- s.put(ctx, file{fmt.Sprintf("%s/%d", s.dir, i), data}) }()
	}
	for range callers {
		if err := <-failed; err != nil {
			t.Errorf("upload while there is no process: %v", err)
		}
	}
	eventually(ctx, t, 30*time.Second, "no process", func() bool {
		return s.execute(ctx, t, shell("echo alive")).stdout == "alive\n"
	})
}

func memoryHog(ctx context.Context, t T, s Sandbox) {
	// A file without a line's end, of which tail keeps all.
	r := s.execute(ctx, t, argv("tail", "/dev/zero"))
	if r.err != nil || r.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY {
		t.Errorf("it ended %v, %v", r.exited, r.err)
	}
}

func diskHog(ctx context.Context, t T, s Sandbox) {
	r := s.sh(ctx, t, "head -c 268435456 /dev/zero >big; code=$?; wc -c <big; rm big; exit $code")
	if r.code() == 0 {
		t.Errorf("256 MiB fit into 64: %v", r)
	}
	if r = s.sh(ctx, t, "head -c 1048576 /dev/zero >/tmp/small && rm /tmp/small"); r.code() != 0 {
		t.Errorf("after the big file is gone, a small one does not fit: %v", r)
	}
}
