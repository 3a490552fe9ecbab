package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// cutCases break the connection at every kind of event of a command. The caller
// must notice nothing: every byte once and in order, and the command's own end.
func cutCases() []Case {
	return slices.Concat(
		both("C07_cut_before_started", cutBeforeStarted),
		both("C07_cut_after_started", cutAfterStarted),
		both("C07_cut_mid_chunk", cutMidChunk),
		both("C07_cut_between_chunks", cutBetweenChunks),
		both("C07_cut_before_exited", cutBeforeExited),
		both("C07_cut_while_attached", cutWhileAttached),
		both("C07_cut_during_write_stdin", cutDuringWriteStdin),
		[]Case{{Name: "C07_black_hole_client_hop", Long: true, run: blackHole}},
	)
}

// numbers is what `seq 1 n` prints.
func numbers(n int) []byte {
	var b bytes.Buffer
	for i := 1; i <= n; i++ {
		_, _ = fmt.Fprintln(&b, i) // A buffer never fails.
	}
	return b.Bytes()
}

// same compares output byte for byte.
func same(t T, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	t.Errorf("%s: %d bytes came where %d are right; they differ from byte %d on: %s", what, len(got), len(want), at, brief(string(got[at:min(len(got), at+60)])))
}

// collect reads a process to its end.
func collect(t T, what string, p *sandgate.Process) ([]byte, *sandgate.Exited) {
	t.Helper()
	var out []byte
	for event, err := range p.Events() {
		if err != nil {
			t.Errorf("%s: %v", what, err)
			break
		}
		if event.Gap != nil {
			t.Errorf("%s: %v: nothing may be missing", what, event.Gap)
		}
		out = append(out, event.Output.GetData()...)
	}
	return out, p.Exit()
}

// finishes reads a process to its end, and wants all of its output and an exit code.
func finishes(t T, what string, p *sandgate.Process, output []byte, code int) {
	t.Helper()
	got, exit := collect(t, what, p)
	same(t, what, got, output)
	exits(t, what, exit, code)
}

// exits wants an exit code.
func exits(t T, what string, e *sandgate.Exited, code int) {
	t.Helper()
	if e == nil || sandgate.ExitCode(e) != code || e.ExitCode == nil {
		t.Errorf("%s: it ended %v, want exit code %d", what, e, code)
	}
}

func start(ctx context.Context, t T, sandbox *sandgate.Sandbox, r sandgate.ExecuteRequest) *sandgate.Process {
	t.Helper()
	p, err := sandbox.Start(ctx, r)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(p.Close)
	return p
}

// release lets a command that waits in `read x` go on.
func release(ctx context.Context, t T, p *sandgate.Process) {
	t.Helper()
	if err := p.WriteStdin(ctx, []byte("\n")); err != nil {
		t.Fatalf("write to standard input: %v", err)
	}
}

// cutBeforeStarted: it is unknown whether the request arrived, so it is sent again, and
// the command must run exactly once.
func cutBeforeStarted(ctx context.Context, t T, h *hop) {
	sandbox := h.sandbox(ctx, t)
	for _, mode := range h.modes {
		h.rounds(t, mode, 6, func(i int) int {
			what := fmt.Sprintf("%s, round %d", mode, i)
			counter := fmt.Sprintf("runs-%s-%s-%d", h.name, mode, i)
			at := span{up: i%2 == 0, bytes: 60, delay: 2 * time.Millisecond, times: 1}
			cuts := h.during(ctx, t, mode, at, func() {
				r, err := sandbox.Execute(ctx, sandgate.ExecuteRequest{Shell: "echo run >>" + counter + "; echo out; exit 3", Timeout: time.Minute})
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				same(t, what, r.Stdout, []byte("out\n"))
				exits(t, what, r.Exit, 3)
			})
			runs, err := h.suite.shared.Execute(ctx, sandgate.ExecuteRequest{Shell: "cat " + counter + "; rm " + counter})
			if err != nil || string(runs.Stdout) != "run\n" {
				t.Errorf("%s: it did not run exactly once: %v, %v", what, runs, err)
			}
			return cuts
		})
	}
}

func cutAfterStarted(ctx context.Context, t T, h *hop) {
	sandbox, want := h.sandbox(ctx, t), numbers(20_000)
	for _, mode := range h.modes {
		p := start(ctx, t, sandbox, sandgate.ExecuteRequest{Shell: "read x; seq 1 20000; exit 7", StdinOpen: true, Timeout: time.Minute})
		h.cut(ctx, t, mode)
		release(ctx, t, p)
		finishes(t, mode, p, want, 7)
	}
}

func cutMidChunk(ctx context.Context, t T, h *hop) {
	sandbox, want := h.sandbox(ctx, t), numbers(600_000)
	for _, mode := range h.modes {
		at := span{bytes: int64(len(want)) / 4, delay: 25 * time.Millisecond, times: 3}
		h.rounds(t, mode, 1, func(int) int {
			return h.during(ctx, t, mode, at, func() {
				p := start(ctx, t, sandbox, sandgate.ExecuteRequest{Shell: "seq 1 600000; exit 7", Timeout: time.Minute})
				finishes(t, mode, p, want, 7)
			})
		})
	}
}

func cutBetweenChunks(ctx context.Context, t T, h *hop) {
	const blocks = 4
	sandbox := h.sandbox(ctx, t)
	for _, mode := range h.modes {
		p := start(ctx, t, sandbox, sandgate.ExecuteRequest{
			Shell: "for i in 1 2 3 4; do seq 1 5000; echo block >&2; read x; done; exit 7", StdinOpen: true, Timeout: time.Minute,
		})
		var got []byte
		seen := 0
		for event, err := range p.Events() {
			if err != nil {
				t.Fatalf("%s: %v", mode, err)
			}
			if event.Output.GetStream() != sandgate.Stderr {
				got = append(got, event.Output.GetData()...)
				continue
			}
			if seen++; seen > blocks {
				t.Fatalf("%s: a block came twice", mode)
			}
			h.cut(ctx, t, mode)
			release(ctx, t, p)
		}
		same(t, mode, got, bytes.Repeat(numbers(5000), blocks))
		exits(t, mode, p.Exit(), 7)
	}
}

// cutBeforeExited breaks the connection before the last event. On the client hop the
// command ends while no client is connected.
func cutBeforeExited(ctx context.Context, t T, h *hop) {
	sandbox := h.sandbox(ctx, t)
	for _, mode := range h.modes {
		p := start(ctx, t, sandbox, sandgate.ExecuteRequest{Shell: "echo out; read x; exit 9", StdinOpen: true, Timeout: time.Minute})
		var got []byte
		for event, err := range p.Events() {
			if err != nil {
				t.Fatalf("%s: %v", mode, err)
			}
			got = append(got, event.Output.GetData()...)
			if event.Output == nil {
				continue
			}
			if h.proxy != nil {
				h.proxy.block(true)
			}
			h.cut(ctx, t, mode)
			// By another way, where there is one.
			other, err := h.suite.shared.Attach(ctx, p.ID(), int64(len(got)), 0)
			if err != nil {
				t.Fatalf("%s: attach: %v", mode, err)
			}
			release(ctx, t, other)
			_, exit := collect(t, mode, other)
			exits(t, mode+", another caller", exit, 9)
			if h.proxy != nil {
				h.proxy.block(false)
			}
		}
		same(t, mode, got, []byte("out\n"))
		exits(t, mode, p.Exit(), 9)
	}
}

func cutWhileAttached(ctx context.Context, t T, h *hop) {
	sandbox, want := h.sandbox(ctx, t), numbers(600_000)
	for _, mode := range h.modes {
		p := start(ctx, t, h.suite.shared, sandgate.ExecuteRequest{Shell: "seq 1 600000; exit 7", Detach: true, Timeout: time.Minute})
		from := h.chance.Int64N(int64(len(want)) / 4)
		// There must be that much before anybody can begin there.
		for event, err := range p.Events() {
			if err != nil {
				t.Fatalf("%s: %v", mode, err)
			}
			if event.Output.GetPosition()+int64(len(event.Output.GetData())) >= from {
				break
			}
		}
		at := span{bytes: int64(len(want)) / 4, delay: 20 * time.Millisecond, times: 3}
		h.rounds(t, mode, 1, func(int) int {
			return h.during(ctx, t, mode, at, func() {
				follower, err := sandbox.Attach(ctx, p.ID(), from, sandgate.StreamsEnd)
				if err != nil {
					t.Fatalf("%s: attach: %v", mode, err)
				}
				t.Cleanup(follower.Close)
				finishes(t, fmt.Sprintf("%s, from position %d", mode, from), follower, want[from:], 7)
			})
		})
	}
}

func cutDuringWriteStdin(ctx context.Context, t T, h *hop) {
	sandbox, data := h.sandbox(ctx, t), noise(3<<20)
	want := fmt.Sprintf("%x", sha256.Sum256(data))
	for _, mode := range h.modes {
		h.rounds(t, mode, 1, func(int) int {
			return h.during(ctx, t, mode, span{up: true, bytes: 1 << 20, delay: 20 * time.Millisecond, times: 3}, func() {
				p := start(ctx, t, sandbox, sandgate.ExecuteRequest{Argv: []string{"sha256sum"}, StdinOpen: true, Timeout: time.Minute})
				if err := p.WriteStdin(ctx, data); err != nil {
					t.Fatalf("%s: %v", mode, err)
				}
				if err := p.CloseStdin(ctx); err != nil {
					t.Fatalf("%s: end of input: %v", mode, err)
				}
				got, exit := collect(t, mode, p)
				if first, _, _ := strings.Cut(string(got), " "); first != want {
					t.Errorf("%s: the command read something else: sha256 %s, want %s", mode, first, want)
				}
				exits(t, mode, exit, 0)
			})
		})
	}
}

// blackHole is a connection that breaks without a reset: only the client's
// own keepalive finds out.
func blackHole(ctx context.Context, t T, s *Suite) {
	h := s.hop(ctx, t, clientHop, "C07_black_hole")
	p := start(ctx, t, h.sandbox(ctx, t), sandgate.ExecuteRequest{Shell: "seq 1 1000; sleep 2; seq 1 1000; exit 7", Timeout: time.Minute})
	h.proxy.swallow()
	finishes(t, "black hole", p, bytes.Repeat(numbers(1000), 2), 7)
}
