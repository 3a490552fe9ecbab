package agent

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// result is everything that a command's stream delivered.
type result struct {
	started        *sandboxv1.Started
	stdout, stderr []byte
	all            []byte
	runs           []sandboxv1.Stream
	gaps           int64
	exited         *sandboxv1.Exited
	err            error
}

type event interface {
	GetStarted() *sandboxv1.Started
	GetOutput() *sandboxv1.Output
	GetGap() *sandboxv1.Gap
	GetExited() *sandboxv1.Exited
}

// collect reads a stream to its end and checks the order of its events.
func collect[T event](t testing.TB, recv func() (T, error), position int64) result {
	t.Helper()
	var r result
	at := position
	for {
		e, err := recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				r.err = err
			} else if r.exited == nil {
				t.Error("the stream ended without an end")
			}
			return r
		}
		if r.exited != nil {
			t.Errorf("event after the end: %v", e)
		}
		switch {
		case e.GetStarted() != nil:
			if r.started != nil {
				t.Error("started twice")
			}
			r.started = e.GetStarted()
		case r.started == nil:
			t.Errorf("first event is %v", e)
		case e.GetOutput() != nil:
			o := e.GetOutput()
			if o.GetPosition() != at || len(o.GetData()) == 0 {
				t.Errorf("output at %d, want %d", o.GetPosition(), at)
			}
			at += int64(len(o.GetData()))
			r.all = append(r.all, o.GetData()...)
			if o.GetStream() == sandboxv1.Stream_STREAM_STDERR {
				r.stderr = append(r.stderr, o.GetData()...)
			} else {
				r.stdout = append(r.stdout, o.GetData()...)
			}
			if len(r.runs) == 0 || r.runs[len(r.runs)-1] != o.GetStream() {
				r.runs = append(r.runs, o.GetStream())
			}
		case e.GetGap() != nil:
			if e.GetGap().GetStart() != at {
				t.Errorf("gap from %d, want %d", e.GetGap().GetStart(), at)
			}
			at = e.GetGap().GetEnd()
			r.gaps += e.GetGap().GetEnd() - e.GetGap().GetStart()
		case e.GetExited() != nil:
			r.exited = e.GetExited()
		}
	}
}

func shell(script string) *sandboxv1.ExecuteRequest {
	return &sandboxv1.ExecuteRequest{Command: &sandboxv1.ExecuteRequest_Shell{Shell: script}}
}

func argv(args ...string) *sandboxv1.ExecuteRequest {
	return &sandboxv1.ExecuteRequest{Command: &sandboxv1.ExecuteRequest_Argv{Argv: &sandboxv1.Argv{Args: args}}}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// called is testContext with a call context.
func called(t testing.TB, c *agentv1.CallContext) context.Context {
	ctx, err := protocol.WithCallContext(testContext(t), c)
	if err != nil {
		t.Fatal(err)
	}
	return ctx
}

func (h *harness) run(t testing.TB, r *sandboxv1.ExecuteRequest) result {
	t.Helper()
	return h.runWith(t, r, &agentv1.CallContext{})
}

func (h *harness) runWith(t testing.TB, r *sandboxv1.ExecuteRequest, c *agentv1.CallContext) result {
	t.Helper()
	s, err := h.Execute(called(t, c), r)
	if err != nil {
		t.Fatal(err)
	}
	return collect(t, s.Recv, 0)
}

func (h *harness) attach(t testing.TB, id string, position int64, until sandboxv1.FollowUntil) result {
	t.Helper()
	s, err := h.Attach(testContext(t), &sandboxv1.AttachRequest{ExecId: id, Position: position, FollowUntil: until})
	if err != nil {
		t.Fatal(err)
	}
	return collect(t, s.Recv, position)
}
