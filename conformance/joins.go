package conformance

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// joinCases are about one command that several callers know.
var joinCases = []Case{
	{Name: "C07_same_id_joins_once", run: sameIDJoins},
	{Name: "C07_same_id_after_the_end", run: sameIDAfterTheEnd},
	{Name: "C07_same_id_other_request", run: sameIDOtherRequest},
	{Name: "C07_attach_positions", run: attachPositions},
	{Name: "C07_gap_is_said", run: gapIsReported},
}

var execSerial atomic.Int64

// execID makes an id that no other command of this run has.
func (s *Suite) execID() string { return fmt.Sprintf("%s-%d", s.run, execSerial.Add(1)) }

// sameIDJoins starts one command twenty times at once.
func sameIDJoins(ctx context.Context, t T, s *Suite) {
	const callers = 20
	sandbox, want := s.target(ctx, t, nil), string(numbers(2000))
	for round := range 3 {
		id := s.execID()
		var joined atomic.Int32
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				req := shell("echo run >>joins; seq 1 2000; exit 7")
				req.ExecId = id
				r := sandbox.execute(ctx, t, req)
				if r.err != nil || r.stdout != want || r.code() != 7 || r.started.GetExecId() != id {
					t.Errorf("round %d: a caller got %v", round, r)
				}
				if r.started.GetJoined() {
					joined.Add(1)
				}
			})
		}
		all.Wait()
		if n := joined.Load(); n != callers-1 {
			t.Errorf("round %d: %d of %d callers were told that they joined", round, n, callers)
		}
		if r := sandbox.sh(ctx, t, "cat joins; rm joins"); r.stdout != "run\n" {
			t.Errorf("round %d: it did not run once: %v", round, r)
		}
	}
}

func sameIDAfterTheEnd(ctx context.Context, t T, s *Suite) {
	sandbox := s.target(ctx, t, nil)
	request := func() *sandboxv1.ExecuteRequest { return shell("echo out; echo err >&2; exit 7") }
	first := request()
	first.ExecId = s.execID()
	was := sandbox.execute(ctx, t, first)
	again := request()
	again.ExecId = first.GetExecId()
	is := sandbox.execute(ctx, t, again)
	if was.err != nil || was.started.GetJoined() || was.code() != 7 {
		t.Errorf("the first call: %v", was)
	}
	if is.err != nil || is.stdout != was.stdout || is.stderr != was.stderr || is.code() != 7 || !is.started.GetJoined() || is.started.GetPid() != was.started.GetPid() {
		t.Errorf("the second call got %v after %v", is, was)
	}
}

func sameIDOtherRequest(ctx context.Context, t T, s *Suite) {
	sandbox := s.target(ctx, t, nil)
	id := s.execID()
	for i, other := range []*sandboxv1.ExecuteRequest{shell("exit 1"), shell("exit 2"), argv("sh", "-c", "exit 1"), shell("exit 1")} {
		other.ExecId = id
		if i == 3 {
			other.Env = map[string]string{"A": "b"}
		}
		r := sandbox.execute(ctx, t, other)
		if i == 0 {
			if r.code() != 1 {
				t.Errorf("the first call: %v", r)
			}
			continue
		}
		wantReason(t, fmt.Sprintf("request %d", i), r.err, "EXEC_ID_REUSED")
	}
}

func (s *Suite) attach(ctx context.Context, t T, sandbox Sandbox, id string, position int64) result {
	t.Helper()
	stream, err := s.stub.Attach(ctx, &sandboxv1.AttachRequest{SandboxId: sandbox.ID, ExecId: id, Position: position})
	if err != nil {
		return result{err: err}
	}
	return follow(t, func() (event, error) { return stream.Recv() })
}

func attachPositions(ctx context.Context, t T, s *Suite) {
	sandbox := s.target(ctx, t, nil)
	req := shell("printf abcdef; exit 7")
	req.ExecId = s.execID()
	if r := sandbox.execute(ctx, t, req); r.stdout != "abcdef" {
		t.Fatalf("%v", r)
	}
	for position := range int64(7) {
		r := s.attach(ctx, t, sandbox, req.GetExecId(), position)
		if r.err != nil || r.stdout != "abcdef"[position:] || r.code() != 7 || r.started.GetPosition() != position {
			t.Errorf("from position %d: %v, started at %d", position, r, r.started.GetPosition())
		}
	}
	wantReason(t, "beyond the end", s.attach(ctx, t, sandbox, req.GetExecId(), 7).err, "POSITION_INVALID")
	wantReason(t, "a negative position", s.attach(ctx, t, sandbox, req.GetExecId(), -1).err, "POSITION_INVALID", "REQUEST_INVALID")
	wantReason(t, "an unknown command", s.attach(ctx, t, sandbox, "never-was", 0).err, "EXEC_NOT_FOUND")
	wantReason(t, "a malformed id", s.attach(ctx, t, sandbox, "a/b", 0).err, "REQUEST_INVALID")
}

// gapIsReported writes more output than is retained while no reader is attached.
func gapIsReported(ctx context.Context, t T, s *Suite) {
	kept := s.info.GetLimits().GetOutputLogBytes()
	if kept <= 0 || kept > 256<<20 {
		t.Skipf("the server keeps %d bytes of output, too much to fill", kept)
	}
	size := kept + kept/4 + 12_345
	sandbox := s.sandbox(ctx, t, nil)
	p := start(ctx, t, sandbox, sandgate.ExecuteRequest{Shell: fmt.Sprintf("head -c %d /dev/zero; exit 7", size), Detach: true, Timeout: time.Minute})
	id := p.ID()
	p.Close() // The command goes on by itself.
	ended, err := sandbox.Attach(ctx, id, 0, sandgate.StreamsEnd)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	if _, err := ended.Wait(); err != nil {
		t.Fatalf("wait: %v", err)
	}
	late, err := sandbox.Attach(ctx, id, 0, sandgate.StreamsEnd)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	t.Cleanup(late.Close)
	position, missed := int64(0), int64(0)
	for event, err := range late.Events() {
		if err != nil {
			t.Fatalf("at position %d: %v", position, err)
		}
		if gap := event.Gap; gap != nil {
			if gap.GetStart() != position || gap.GetEnd() <= gap.GetStart() {
				t.Errorf("%v at position %d", gap, position)
			}
			position, missed = gap.GetEnd(), missed+gap.GetEnd()-gap.GetStart()
		}
		if event.Output != nil {
			position = event.Output.GetPosition() + int64(len(event.Output.GetData()))
		}
	}
	if position != size || missed < size-kept || missed > size-kept/2 {
		t.Errorf("of %d bytes, %d were missed, and the end was at %d; %d are kept", size, missed, position, kept)
	}
	exits(t, "the end", late.Exit(), 7)
}
