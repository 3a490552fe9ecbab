package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// readerCases are about readers that are slow or stuck.
var readerCases = []Case{
	{Name: "C12_slow_reader_gets_all", run: slowReader},
	{Name: "C12_stuck_reader_stalls_nobody", run: stuckReader},
	{Name: "C12_stuck_reader_is_dropped", Long: true, run: stuckReaderIsDropped},
}

// slowReader takes a message now and then, so that everything behind it fills.
func slowReader(ctx context.Context, t T, s *Suite) {
	const size = 24 << 20
	p := start(ctx, t, s.sandbox(ctx, t, nil), sandgate.ExecuteRequest{Shell: fmt.Sprintf("yes 0123456789abcdef | head -c %d; exit 7", size), Timeout: 2 * time.Minute})
	check := pattern{unit: []byte("0123456789abcdef\n")}
	for event, err := range p.Events() {
		if err != nil {
			t.Fatalf("at position %d: %v", check.position, err)
		}
		check.take(t, event.Output)
		if check.position < size/8 {
			time.Sleep(5 * time.Millisecond) // A slow reader.
		}
	}
	check.end(t, size)
	exits(t, "slow reader", p.Exit(), 7)
}

// pattern compares output with a unit that is repeated, without keeping either.
type pattern struct {
	unit     []byte
	position int64
	wrong    bool
}

func (p *pattern) take(t T, o *sandboxv1.Output) {
	t.Helper()
	data := o.GetData()
	if o != nil && o.GetPosition() != p.position && !p.wrong {
		p.wrong = true
		t.Errorf("output at position %d, expected %d", o.GetPosition(), p.position)
	}
	for len(data) > 0 {
		rest := p.unit[p.position%int64(len(p.unit)):]
		n := min(len(rest), len(data))
		if !bytes.Equal(rest[:n], data[:n]) && !p.wrong {
			p.wrong = true
			t.Errorf("wrong bytes at position %d: %s", p.position, brief(string(data[:n])))
		}
		data, p.position = data[n:], p.position+int64(n)
	}
}

func (p *pattern) end(t T, size int64) {
	t.Helper()
	if p.position != size {
		t.Errorf("%d of %d bytes arrived", p.position, size)
	}
}

// stuckReader stops reading. Another reader of the same command and other commands
// continue over the same connection, and the stuck reader gets a gap for what it
// missed when it resumes.
func stuckReader(ctx context.Context, t T, s *Suite) {
	kept := s.info.GetLimits().GetOutputLogBytes()
	if kept <= 0 || kept > 256<<20 {
		t.Skipf("the server keeps %d bytes of output, too much to fill", kept)
	}
	size := kept + kept/2
	sandbox := s.sandbox(ctx, t, nil)
	req := shell(fmt.Sprintf("yes 0123456789abcdef | head -c %d; exit 7", size))
	req.SandboxId, req.ExecId = sandbox.ID(), s.execID()
	stuck, err := s.stub.Execute(ctx, req)
	if err != nil {
		t.Fatalf("execute: %v", err)
	}
	if m, err := stuck.Recv(); err != nil || m.GetStarted() == nil {
		t.Fatalf("execute: %v, %v", m, err)
	}
	// The second reader has to keep up from the start, and does: a command waits
	// for its fastest reader.
	reader, err := s.once.Sandbox(sandbox.ID()).Attach(ctx, req.GetExecId(), 0, sandgate.LeaderExit)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	t.Cleanup(reader.Close)
	check := pattern{unit: []byte("0123456789abcdef\n")}
	messages := 0
	for event, err := range reader.Events() {
		if err != nil {
			t.Fatalf("the reader that reads, at position %d: %v", check.position, err)
		}
		check.take(t, event.Output)
		if messages++; messages%40 == 0 {
			r, err := s.once.Sandbox(sandbox.ID()).Execute(ctx, sandgate.ExecuteRequest{Shell: "echo short", Timeout: 30 * time.Second})
			if err != nil || string(r.Stdout) != "short\n" {
				t.Fatalf("another command: %v, %v", r, err)
			}
		}
	}
	check.end(t, size)
	exits(t, "the reader that reads", reader.Exit(), 7)
	position, exit, err := drain(t, stuck)
	if err != nil {
		if _, err := comeBack(t, err); err != nil {
			t.Fatalf("the reader that was stuck: %v", err)
		}
		return
	}
	exits(t, "the reader that was stuck", exit, 7)
	if position != size {
		t.Errorf("the reader that was stuck came to %d of %d", position, size)
	}
}

// drain reads a stream to its end and checks its positions; missing output must be a
// gap.
func drain(t T, stream interface {
	Recv() (*sandboxv1.ExecuteResponse, error)
}) (int64, *sandboxv1.Exited, error) {
	t.Helper()
	var position int64
	var exit *sandboxv1.Exited
	for {
		m, err := stream.Recv()
		if err != nil {
			if exit != nil {
				err = nil
			}
			return position, exit, err
		}
		if o := m.GetOutput(); o != nil {
			if o.GetPosition() != position {
				t.Errorf("output at position %d, expected %d, and no gap was said", o.GetPosition(), position)
			}
			position = o.GetPosition() + int64(len(o.GetData()))
		}
		if g := m.GetGap(); g != nil {
			if g.GetStart() != position {
				t.Errorf("%v at position %d", g, position)
			}
			position = g.GetEnd()
		}
		if m.GetExited() != nil {
			exit = m.GetExited()
		}
	}
}

// comeBack reads where a dropped reader may come back to.
func comeBack(t T, err error) (int64, error) {
	t.Helper()
	own := (*sandgate.Error)(nil)
	if !errors.As(err, &own) || own.Reason != "READER_TOO_SLOW" {
		return 0, err
	}
	return strconv.ParseInt(own.Metadata["position"], 10, 64)
}

// stuckReaderIsDropped waits until the server drops a stuck reader, then attaches at
// the position of the error.
func stuckReaderIsDropped(ctx context.Context, t T, s *Suite) {
	size := min(s.info.GetLimits().GetOutputLogBytes()/2, 32<<20)
	sandbox := s.sandbox(ctx, t, nil)
	p := start(ctx, t, sandbox, sandgate.ExecuteRequest{Shell: fmt.Sprintf("head -c %d /dev/zero; exit 7", size), Detach: true, Timeout: time.Minute})
	stuck, err := s.stub.Attach(ctx, &sandboxv1.AttachRequest{SandboxId: sandbox.ID(), ExecId: p.ID()})
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	select {
	case <-ctx.Done():
		t.Fatalf("%v", context.Cause(ctx))
	case <-time.After(80 * time.Second): // A stuck reader.
	}
	var failed error
	var position int64
	for failed == nil {
		var m *sandboxv1.AttachResponse
		if m, failed = stuck.Recv(); m.GetExited() != nil {
			t.Fatalf("nobody minded a reader that took nothing for 80 s")
		}
		position += int64(len(m.GetOutput().GetData()))
	}
	back, err := comeBack(t, failed)
	if err != nil {
		t.Fatalf("a stuck reader was dropped with %v", failed)
	}
	if back < 0 || back > position {
		t.Errorf("it is told to come back to %d and had %d", back, position)
	}
	r := s.attach(ctx, t, Sandbox{ID: sandbox.ID()}, p.ID(), back)
	if int64(len(r.stdout)) != size-back || r.code() != 7 {
		t.Errorf("from position %d, %d of %d bytes arrived: %v", back, len(r.stdout), size-back, r.exited)
	}
}
