package agent

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// anonymous is the agent's anonymous memory in bytes.
func (h *harness) anonymous(t testing.TB) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(h.pid) + "/smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Anonymous:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("no anonymous memory in smaps_rollup")
	return 0
}

// runMany runs commands four at a time. The test fails if one does.
func (h *harness) runMany(t testing.TB, n int, request func(i int) *sandboxv1.ExecuteRequest) {
	t.Helper()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := w; i < n; i += 4 {
				if r := h.run(t, request(i)); r.err != nil || r.exited == nil {
					t.Errorf("command %d: %v", i, r.err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Thousands of ended commands need little memory: the agent shares the sandbox's limit.
func TestEndedCommandsAreSmall(t *testing.T) {
	h := start(t, setup{cgroup: cgroupRoot() != ""})
	warm, many := 500, 8000
	if raceEnabled {
		warm, many = 50, 400
	}
	id := func(i int) string { return fmt.Sprintf("x-%026d", i) }
	request := func(i int) *sandboxv1.ExecuteRequest {
		r := argv("/bin/true")
		r.ExecId = id(i)
		return r
	}
	idle := func() int64 {
		time.Sleep(2500 * time.Millisecond) // the agent returns free memory after 2 s
		return h.anonymous(t)
	}
	h.runMany(t, warm, request)
	before := idle()
	h.runMany(t, many, func(i int) *sandboxv1.ExecuteRequest { return request(warm + i) })
	after := idle()
	each := float64(after-before) / float64(many)
	t.Logf("%d commands: %.1f MiB before, %.1f MiB after, %.0f B each", many, float64(before)/(1<<20), float64(after)/(1<<20), each)
	if each > 500 && !raceEnabled {
		t.Errorf("an ended command takes %.0f B", each)
	}
	if after > 12<<20 && !raceEnabled {
		t.Errorf("the agent takes %d bytes", after)
	}
	// All of them are still there, and joined rather than run again.
	for _, i := range []int{0, warm, warm + many - 1} {
		if r := h.run(t, request(i)); r.err != nil || !r.started.GetJoined() || r.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_EXITED {
			t.Errorf("command %d: %v, %v", i, r.exited, r.err)
		}
	}
}

// Output of ended commands can still be read after it moved to the archive, byte for byte
// and in order, also by calls that join.
func TestOutputOfEndedCommands(t *testing.T) {
	h := start(t, setup{})
	const many, size = 60, 100_000 // six times of what stays in memory
	request := func(i int) *sandboxv1.ExecuteRequest {
		r := shell(fmt.Sprintf("head -c %d /dev/urandom; echo %d >&2; (sleep 0.3; echo late) &", size, i))
		r.ExecId = fmt.Sprintf("c%d", i)
		return r
	}
	first := make([]result, many)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() { first[i] = h.run(t, request(i)) })
	}
	wg.Wait()
	for i := range many {
		// Its background child must have ended.
		eventually(t, "the command is over", func() bool {
			l, err := h.ListProcesses(testContext(t), &sandboxv1.ListProcessesRequest{})
			return err == nil && len(l.GetProcesses()) == 0
		})
		n := len(first[i].all)
		brief := h.run(t, request(i))
		if brief.err != nil || !brief.started.GetJoined() || !bytes.Equal(brief.all, first[i].all) || brief.gaps != 0 {
			t.Fatalf("command %d: %d of %d bytes, %d missed, %v, %v", i, len(brief.all), n, brief.gaps, brief.started, brief.err)
		}
		rest := h.attach(t, fmt.Sprintf("c%d", i), int64(n-3), sandboxv1.FollowUntil_FOLLOW_UNTIL_STREAMS_END)
		want := string(first[i].all[n-3:])
		if !bytes.HasSuffix(first[i].all, []byte("late\n")) {
			want += "late\n"
		}
		if string(rest.all) != want {
			t.Fatalf("command %d went on with %q, want %q", i, rest.all, want)
		}
	}
}
