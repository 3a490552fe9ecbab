package conformance

import (
	"context"
	"errors"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// stdinCases are about standard input and terminals.
var stdinCases = []Case{
	{Name: "C13_stdin_end", run: stdinEnd},
	{Name: "C13_stdin_broken_pipe", run: stdinBrokenPipe},
	{Name: "C13_stdin_offsets", run: stdinOffsets},
	{Name: "C13_stdin_that_nobody_reads", run: stdinUnread},
	{Name: "C13_pipe_signal", run: pipeSignal},
	{Name: "C13_terminal", run: terminal},
}

func stdinEnd(ctx context.Context, t T, s *Suite) {
	p := start(ctx, t, s.sandbox(ctx, t, nil), sandgate.ExecuteRequest{
		Shell: "cat; echo end; sleep 60 & exit 7", Stdin: []byte("first "), StdinOpen: true, Timeout: time.Minute,
	})
	for _, text := range []string{"second ", "third\x00\n"} {
		if err := p.WriteStdin(ctx, []byte(text)); err != nil {
			t.Fatalf("write: %v", err)
		}
	}
	untilOutput(t, p, "first second third\x00\n")
	for range 2 { // The second time is a repeated call.
		if err := p.CloseStdin(ctx); err != nil {
			t.Errorf("end: %v", err)
		}
	}
	wantReason(t, "write after the end", p.WriteStdin(ctx, []byte("x")), "STDIN_CLOSED")
	finishes(t, "after the end", p, []byte("end\n"), 7)
	if _, err := s.shared.Signal(ctx, p.ID(), "SIGKILL", sandgate.Tree); err != nil {
		t.Errorf("kill what is left: %v", err)
	}
}

// stdinBrokenPipe closes the reading end: the write fails, the command keeps running.
func stdinBrokenPipe(ctx context.Context, t T, s *Suite) {
	p := start(ctx, t, s.sandbox(ctx, t, nil), sandgate.ExecuteRequest{
		Shell: "exec 0<&-; trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done", StdinOpen: true, Timeout: time.Minute,
	})
	untilOutput(t, p, "ready\n")
	wantReason(t, "write to a closed pipe", p.WriteStdin(ctx, []byte("x")), "STDIN_CLOSED")
	if err := p.Signal(ctx, "SIGTERM", sandgate.Leader); err != nil {
		t.Errorf("signal: %v", err)
	}
	exit, err := p.Wait()
	if err != nil {
		t.Errorf("%v", err)
	}
	exits(t, "the command", exit, 7)
	wantReason(t, "write to what has ended", p.WriteStdin(ctx, []byte("x")), "STDIN_CLOSED", "EXEC_ENDED")
	none := start(ctx, t, s.shared, sandgate.ExecuteRequest{Shell: "sleep 100", Timeout: time.Minute})
	wantReason(t, "write to what was not opened", none.WriteStdin(ctx, []byte("x")), "STDIN_CLOSED")
	none.Close()
}

func (s *Suite) writeStdin(ctx context.Context, id string, offset int64, data string, eof bool) (int64, error) {
	reply, err := s.stub.WriteStdin(ctx, &sandboxv1.WriteStdinRequest{
		SandboxId: s.shared.ID(), ExecId: id, Offset: offset, Data: []byte(data), Eof: eof,
	})
	return reply.GetNextOffset(), err
}

func stdinOffsets(ctx context.Context, t T, s *Suite) {
	p := start(ctx, t, s.sandbox(ctx, t, nil), sandgate.ExecuteRequest{Argv: []string{"cat"}, StdinOpen: true, Timeout: time.Minute})
	for _, c := range []struct {
		offset int64
		data   string
		next   int64
	}{
		{0, "abc", 3}, {0, "abc", 3}, {1, "bc", 3}, {2, "cde", 5}, {5, "", 5}, {5, "f", 6},
	} {
		next, err := s.writeStdin(ctx, p.ID(), c.offset, c.data, false)
		if err != nil || next != c.next {
			t.Errorf("%q at %d: next %d, %v, want %d", c.data, c.offset, next, err, c.next)
		}
	}
	_, err := s.writeStdin(ctx, p.ID(), 7, "h", false)
	wantReason(t, "a hole", err, "STDIN_OFFSET_MISMATCH")
	if own := (*sandgate.Error)(nil); errors.As(err, &own) && own.Metadata["offset"] != "6" {
		t.Errorf("a hole: it names %q as the offset", own.Metadata["offset"])
	}
	_, err = s.writeStdin(ctx, p.ID(), -1, "h", false)
	wantReason(t, "a negative offset", err, "STDIN_OFFSET_MISMATCH", "REQUEST_INVALID")
	_, err = s.writeStdin(ctx, "never-was", 0, "h", false)
	wantReason(t, "an unknown command", err, "EXEC_NOT_FOUND")
	if next, err := s.writeStdin(ctx, p.ID(), 6, "", true); err != nil || next != 6 {
		t.Errorf("the end: %d, %v", next, err)
	}
	finishes(t, "all", p, []byte("abcdef"), 0)
}

// stdinUnread fills the pipe of a command that does not read. The write waits as
// long as its caller does; everything else goes on.
func stdinUnread(ctx context.Context, t T, s *Suite) {
	sandbox := s.sandbox(ctx, t, nil)
	p := start(ctx, t, sandbox, sandgate.ExecuteRequest{Shell: "echo ready; read x; cat | wc -c", StdinOpen: true, Timeout: time.Minute})
	q := start(ctx, t, sandbox, sandgate.ExecuteRequest{Shell: "sleep 100", StdinOpen: true, Timeout: time.Minute})
	impatient, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := s.writeStdin(impatient, q.ID(), 0, string(noise(1<<20)), false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a write that nobody reads: %v", err)
	}
	q.Close()
	if err := p.WriteStdin(ctx, append([]byte("line\n"), make([]byte, 1<<20)...)); err != nil {
		t.Errorf("write: %v", err)
	}
	if err := p.CloseStdin(ctx); err != nil {
		t.Errorf("end: %v", err)
	}
	finishes(t, "the reader", p, []byte("ready\n1048576\n"), 0)
}

// pipeSignal: a command that writes to a closed pipe must die of it, as on any
// terminal. A supervisor that ignores the signal would pass that on.
func pipeSignal(ctx context.Context, t T, s *Suite) {
	r := s.target(ctx, t, nil).sh(ctx, t, "(yes; echo $? >&2) | head -n 1")
	if r.stdout != "y\n" || r.stderr != "141\n" {
		t.Errorf("%v", r)
	}
}

func terminal(ctx context.Context, t T, s *Suite) {
	p := start(ctx, t, s.sandbox(ctx, t, nil), sandgate.ExecuteRequest{
		Shell:    `[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal; trap 'stty size; exit 7' WINCH; stty size; while :; do sleep 0.05; done`,
		Terminal: &sandgate.TerminalSize{Rows: 30, Columns: 100}, Timeout: time.Minute,
	})
	untilOutput(t, p, "terminal\r\n30 100\r\n")
	if err := p.Resize(ctx, 31, 101); err != nil {
		t.Errorf("resize: %v", err)
	}
	finishes(t, "resized", p, []byte("31 101\r\n"), 7)
	none := start(ctx, t, s.shared, sandgate.ExecuteRequest{Shell: "sleep 100", Timeout: time.Minute})
	wantReason(t, "resize without a terminal", none.Resize(ctx, 1, 1), "NO_TERMINAL")
	none.Close()
}
