package server

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// text is the whole output of the scripted command.
var text = strings.Repeat("0123456789abcdef", 4096)

const step = 4096

// tell emits the text from a position on, and calls at after every piece with
// the position; when that returns false it stops and waits for the pipe to
// break.
func tell(out emitter, from int64, at func(int64) bool) error {
	if err := out.started(from); err != nil {
		return err
	}
	for p := from; p < int64(len(text)); {
		n := min(int64(step), int64(len(text))-p)
		if err := out.output(p, text[p:p+n]); err != nil {
			return err
		}
		p += n
		if !at(p) {
			<-out.stream.Context().Done()
			return out.stream.Context().Err()
		}
	}
	return out.exited(int64(len(text)), 3)
}

// Cuts of the pipe at every piece must be invisible.
func TestCutPipeIsInvisibleToTheCaller(t *testing.T) {
	for cut := int64(step); cut < int64(len(text)); cut += 3 * step {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			h := newHarness(t, nil)
			var p *scriptedSandbox
			ready := make(chan struct{})
			var once atomic.Bool
			breaks := func(at int64) bool {
				<-ready
				if at == cut && !once.Swap(true) {
					go p.cut()
					return false
				}
				return true
			}
			h.provider.script.execute = func(_ *scriptedAgent, _ *sandboxv1.ExecuteRequest, out emitter) error {
				return tell(out, 0, breaks)
			}
			h.provider.script.attach = func(_ *scriptedAgent, req *sandboxv1.AttachRequest, out emitter) error {
				return tell(out, req.GetPosition(), func(int64) bool { return true })
			}
			h.create("a")
			p = h.sandbox("a")
			close(ready)
			o, err := h.execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a"})
			if err != nil {
				t.Fatal(err)
			}
			if o.output.String() != text || o.exited.GetExitCode() != 3 {
				t.Fatalf("got %d bytes and %v", o.output.Len(), o.exited)
			}
		})
	}
}

// A break before the first event sends the request again under the same id,
// which joins the command.
func TestPipeCutBeforeTheStartJoinsTheCommand(t *testing.T) {
	h := newHarness(t, nil)
	var p *scriptedSandbox
	ready := make(chan struct{})
	ids := make(chan string, 2)
	h.provider.script.execute = func(a *scriptedAgent, req *sandboxv1.ExecuteRequest, out emitter) error {
		<-ready
		ids <- req.GetExecId()
		if !out.joined {
			go p.cut()
			<-out.stream.Context().Done()
			return out.stream.Context().Err()
		}
		return tell(out, 0, func(int64) bool { return true })
	}
	h.create("a")
	p = h.sandbox("a")
	close(ready)
	o, err := h.execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if first, second := <-ids, <-ids; first != second || first == "" {
		t.Fatalf("ids %q and %q", first, second)
	}
	if o.output.String() != text {
		t.Fatalf("got %d bytes", o.output.Len())
	}
}

// What happened to the sandbox while the pipe was broken decides how the
// command's stream ends, in bounded time.
func TestSandboxsStateAfterACutDecidesTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(h *harness, p *scriptedSandbox)
		exit      sandboxv1.ExitReason
		reason    string
	}{
		"replaced": {meanwhile: func(h *harness, p *scriptedSandbox) { h.provider.remake(p) }, exit: sandboxv1.ExitReason_EXIT_REASON_LOST},
		"deleted": {meanwhile: func(h *harness, p *scriptedSandbox) {
			_, err := h.client.DeleteSandbox(h.t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "a"})
			if err != nil {
				h.t.Error(err)
			}
		}, exit: sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED},
		"failed": {meanwhile: func(h *harness, p *scriptedSandbox) {
			h.provider.mu.Lock()
			p.info.State, p.info.Message = providers.StateFailed, "the container ended"
			h.provider.mu.Unlock()
			p.server.Stop()
		}, exit: sandboxv1.ExitReason_EXIT_REASON_LOST},
		"out of memory": {meanwhile: func(h *harness, p *scriptedSandbox) {
			h.provider.mu.Lock()
			p.info.State, p.info.Failure = providers.StateFailed, providers.FailureOutOfMemory
			h.provider.mu.Unlock()
			p.server.Stop()
		}, exit: sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY},
		"out of memory, reported late": {meanwhile: func(h *harness, p *scriptedSandbox) {
			h.provider.mu.Lock()
			p.info.State = providers.StateCreating
			h.provider.mu.Unlock()
			p.cut()
			time.AfterFunc(50*time.Millisecond, func() {
				h.provider.mu.Lock()
				defer h.provider.mu.Unlock()
				p.info.State, p.info.Failure = providers.StateFailed, providers.FailureOutOfMemory
			})
		}, exit: sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY},
		"never ready again": {meanwhile: func(h *harness, p *scriptedSandbox) {
			h.provider.mu.Lock()
			p.info.State = providers.StateCreating
			h.provider.mu.Unlock()
			p.cut()
		}, reason: "AGENT_UNAVAILABLE"},
		"suspended": {meanwhile: func(h *harness, p *scriptedSandbox) {
			h.provider.mu.Lock()
			p.info.State = providers.StateSuspended
			h.provider.mu.Unlock()
			p.server.Stop()
		}, exit: sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED},
		"forgotten": {meanwhile: func(h *harness, p *scriptedSandbox) { p.cut() }, exit: sandboxv1.ExitReason_EXIT_REASON_LOST},
		"away": {meanwhile: func(h *harness, p *scriptedSandbox) {
			err := error(fmt.Errorf("no route: %w", providers.ErrUnavailable))
			p.dialErr.Store(&err)
			p.cut()
		}, reason: "AGENT_UNAVAILABLE"},
		"substrate away": {meanwhile: func(h *harness, p *scriptedSandbox) {
			err := error(fmt.Errorf("no route: %w", providers.ErrUnavailable))
			h.provider.failGet.Store(&err)
			p.cut()
		}, reason: "PROVIDER_UNAVAILABLE"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(cfg *Config) {
				if c.reason != "" { // that is what the end of the wait says
					cfg.Timing.Reattach = 200 * time.Millisecond
				}
			})
			h.provider.script.execute = hang
			h.create("a")
			stream, err := h.client.Execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a",
				Command: &sandboxv1.ExecuteRequest_Shell{Shell: "x"}})
			if err != nil {
				t.Fatal(err)
			}
			if m, err := stream.Recv(); err != nil || m.GetStarted() == nil {
				t.Fatalf("%v %v", m, err)
			}
			c.meanwhile(h, h.sandbox("a"))
			m, err := stream.Recv()
			if c.reason != "" {
				wantReason(t, err, c.reason)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if m.GetExited().GetReason() != c.exit || m.GetExited().ExitCode != nil {
				t.Fatalf("got %v, want %v", m, c.exit)
			}
		})
	}
}

// A sandbox that ran out of memory returns that to every later call.
func TestEveryLaterCallReportsOutOfMemory(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	p := h.sandbox("a")
	h.provider.mu.Lock()
	p.info.State, p.info.Failure = providers.StateFailed, providers.FailureOutOfMemory
	h.provider.mu.Unlock()
	p.server.Stop()
	got, err := h.client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: "a"})
	if err != nil || !strings.Contains(got.GetSandbox().GetStateMessage(), "memory") {
		t.Errorf("%v %v", got, err)
	}
	_, err = h.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "a", Path: "/x"})
	wantReason(t, err, "SANDBOX_NOT_ACTIVE")
	if m := metadataOf(t, err); m["failure"] != "OUT_OF_MEMORY" || !strings.Contains(err.Error(), "memory") {
		t.Errorf("%v: %v", err, m)
	}
}

// The server also bridges a short absence for calls that find the pipe broken before
// they begin.
func TestUnaryCallBridgesAShortAbsence(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	p := h.sandbox("a")
	err := error(fmt.Errorf("no route: %w", providers.ErrUnavailable))
	p.dialErr.Store(&err)
	p.cut()
	time.AfterFunc(100*time.Millisecond, func() { p.dialErr.Store(nil) })
	resp, gotErr := h.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "a", Path: "/x"})
	if gotErr != nil || resp.GetInfo().GetPath() != "/x" {
		t.Fatalf("%v %v", resp, gotErr)
	}
}

func TestAttach(t *testing.T) {
	h := newHarness(t, nil)
	h.provider.script.attach = func(_ *scriptedAgent, req *sandboxv1.AttachRequest, out emitter) error {
		return tell(out, req.GetPosition(), func(int64) bool { return true })
	}
	h.create("a")
	stream, err := h.client.Attach(t.Context(), &sandboxv1.AttachRequest{SandboxId: "a", ExecId: "x", Position: 100})
	if err != nil {
		t.Fatal(err)
	}
	o, err := collect(t, stream)
	if err != nil || o.output.String() != text[100:] {
		t.Fatalf("%v, %d bytes", err, o.output.Len())
	}
}

// A reader that takes nothing is dropped with the position to come back to,
// where nothing but memory waits for it.
func TestSlowReaderIsDroppedWithItsPosition(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Timing.SlowReader = 100 * time.Millisecond })
	h.provider.script.attach = func(a *scriptedAgent, _ *sandboxv1.AttachRequest, out emitter) error {
		if err := out.started(0); err != nil {
			return err
		}
		piece := strings.Repeat("x", 256<<10)
		for p := int64(0); ; p += int64(len(piece)) {
			if err := out.output(p, piece); err != nil {
				a.cancelled <- struct{}{}
				return err
			}
		}
	}
	h.create("a")
	stream, err := h.client.Attach(t.Context(), &sandboxv1.AttachRequest{SandboxId: "a", ExecId: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.sandbox("a").agent.cancelled:
	case <-time.After(30 * time.Second):
		t.Fatal("the reader was not dropped")
	}
	position := int64(0)
	for err == nil {
		var m *sandboxv1.AttachResponse
		m, err = stream.Recv()
		position += int64(len(m.GetOutput().GetData()))
	}
	wantReason(t, err, "READER_TOO_SLOW")
	// Output that was sent after the server gave up may still arrive. From the
	// position on, none is missing.
	told, _ := strconv.ParseInt(metadataOf(t, err)["position"], 10, 64)
	if told == 0 || told > position {
		t.Fatalf("got %d bytes and %v", position, err)
	}
}
