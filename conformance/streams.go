package conformance

import (
	"bytes"
	"context"
	"fmt"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// streamCases are about the content and the amount of output.
var streamCases = []Case{
	{Name: "C06_large_output", run: largeOutput},
	{Name: "C06_every_byte", run: everyByte},
	{Name: "C06_replay_interleaves_alike", run: replayInterleaves},
	{Name: "C06_one_merged_pipe", run: mergedPipe},
	{Name: "C11_output_cap", run: outputCap},
}

// largeOutput is binary, and compared byte for byte.
func largeOutput(ctx context.Context, t T, s *Suite) {
	sandbox, unit := s.sandbox(ctx, t, nil), noise(1<<20)
	path, times := s.workdir(ctx, t, sandbox)+"/noise", s.scaled(1024)
	t.Logf("%d MiB", times)
	if _, err := sandbox.UploadFile(ctx, sandgate.File{Path: path, Content: bytes.NewReader(unit)}); err != nil {
		t.Fatalf("upload: %v", err)
	}
	p := start(ctx, t, sandbox, sandgate.ExecuteRequest{
		Shell: fmt.Sprintf("i=0; while [ $i -lt %d ]; do cat %s; i=$((i+1)); done; rm %s; exit 7", times, path, path), Timeout: 4 * time.Minute,
	})
	check := pattern{unit: unit}
	for event, err := range p.Events() {
		if err != nil {
			t.Fatalf("at position %d: %v", check.position, err)
		}
		if event.Gap != nil {
			t.Fatalf("%v: nothing may be missing", event.Gap)
		}
		check.take(t, event.Output)
	}
	check.end(t, times<<20)
	exits(t, "large output", p.Exit(), 7)
	if got := p.Exit().GetStdoutBytes(); got != times<<20 {
		t.Errorf("%d bytes were counted", got)
	}
}

func everyByte(ctx context.Context, t T, s *Suite) {
	want := make([]byte, 256)
	var script bytes.Buffer
	for i := range want {
		want[i] = byte(i)
		_, _ = fmt.Fprintf(&script, `\%03o`, i) // A buffer never fails.
	}
	sandbox := s.target(ctx, t, nil)
	if r := sandbox.sh(ctx, t, "printf '"+script.String()+"'"); r.stdout != string(want) {
		t.Errorf("got %v", r)
	}
	req := argv("cat")
	req.Stdin = want
	if r := sandbox.execute(ctx, t, req); r.stdout != string(want) {
		t.Errorf("by standard input: %v", r)
	}
}

// replayInterleaves: the log is one, so a replay shows the streams in the order
// in which they were first shown.
func replayInterleaves(ctx context.Context, t T, s *Suite) {
	sandbox := s.sandbox(ctx, t, nil)
	p := start(ctx, t, sandbox, sandgate.ExecuteRequest{Shell: "for i in 1 2 3 4 5 6 7 8 9; do seq $i 300; seq $i 200 >&2; done; exit 7", Timeout: time.Minute})
	ordered := func(p *sandgate.Process) []byte {
		var all []byte
		for event, err := range p.Events() {
			if err != nil {
				t.Errorf("%v", err)
				break
			}
			for _, b := range event.Output.GetData() {
				all = append(all, byte(event.Output.GetStream()), b)
			}
		}
		exits(t, "the end", p.Exit(), 7)
		return all
	}
	first := ordered(p)
	for range 3 {
		again, err := sandbox.Attach(ctx, p.ID(), 0, sandgate.LeaderExit)
		if err != nil {
			t.Fatalf("attach: %v", err)
		}
		same(t, "a replay", ordered(again), first)
	}
}

func mergedPipe(ctx context.Context, t T, s *Suite) {
	r, err := s.sandbox(ctx, t, nil).Execute(ctx, sandgate.ExecuteRequest{
		Shell: "for i in $(seq 1 200); do echo out $i; echo err $i >&2; done", Merged: true, Timeout: time.Minute,
	})
	var want bytes.Buffer
	for i := 1; i <= 200; i++ {
		_, _ = fmt.Fprintf(&want, "out %d\nerr %d\n", i, i) // A buffer never fails.
	}
	if err != nil || len(r.Stderr) > 0 {
		t.Errorf("%v, %v", r, err)
		return
	}
	same(t, "merged", r.Stdout, want.Bytes())
}

func outputCap(ctx context.Context, t T, s *Suite) {
	r, err := s.sandbox(ctx, t, nil).Execute(ctx, sandgate.ExecuteRequest{
		Shell: "head -c 20000000 /dev/zero; echo err >&2; exit 7", MaxOutputBytes: 1000, Timeout: time.Minute,
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	exits(t, "the command", r.Exit, 7)
	if n := len(r.Stdout) + len(r.Stderr); n != 1000 {
		t.Errorf("%d bytes came, 1000 were allowed", n)
	}
	if r.Exit.GetStdoutBytes() != 20_000_000 || r.Exit.GetStderrBytes() != 4 || !r.Exit.GetStdoutTruncated() || !r.Exit.GetStderrTruncated() {
		t.Errorf("it says %v", r.Exit)
	}
}
