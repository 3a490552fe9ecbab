package server

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// receiver is what the streams of Execute and Attach have in common.
type receiver[M any] interface{ Recv() (M, error) }

type event interface {
	GetStarted() *sandboxv1.Started
	GetOutput() *sandboxv1.Output
	GetGap() *sandboxv1.Gap
	GetExited() *sandboxv1.Exited
}

// outcome is a command as a caller saw it.
type outcome struct {
	started *sandboxv1.Started
	output  strings.Builder
	gaps    int
	exited  *sandboxv1.Exited
}

// collect reads a stream to its end and holds it to contract 4.
func collect[M event](t *testing.T, in receiver[M]) (*outcome, error) {
	t.Helper()
	var o outcome
	var position int64
	for {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			if o.exited == nil {
				t.Fatal("OK without exited")
			}
			return &o, nil
		}
		if err != nil {
			return &o, err
		}
		if o.exited != nil {
			t.Fatal("an event after exited")
		}
		switch {
		case m.GetStarted() != nil:
			if o.started != nil {
				t.Fatal("started twice")
			}
			o.started, position = m.GetStarted(), m.GetStarted().GetPosition()
		case m.GetOutput() != nil:
			if m.GetOutput().GetPosition() != position {
				t.Fatalf("output at %d, want %d", m.GetOutput().GetPosition(), position)
			}
			o.output.Write(m.GetOutput().GetData())
			position += int64(len(m.GetOutput().GetData()))
		case m.GetGap() != nil:
			o.gaps++
			position = m.GetGap().GetEnd()
		case m.GetExited() != nil:
			o.exited = m.GetExited()
		}
		if o.started == nil && m.GetExited() == nil {
			t.Fatal("an event before started")
		}
	}
}

func (h *harness) execute(ctx context.Context, req *sandboxv1.ExecuteRequest) (*outcome, error) {
	h.t.Helper()
	if req.GetCommand() == nil {
		req.Command = &sandboxv1.ExecuteRequest_Shell{Shell: "true"}
	}
	stream, err := h.client.Execute(ctx, req)
	if err != nil {
		return nil, err
	}
	return collect(h.t, stream)
}

func TestExecute(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	o, err := h.execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if o.output.String() != "hello" || o.exited.GetExitCode() != 0 || o.started.GetExecId() == "" || o.started.GetIncarnation() != "i1" {
		t.Fatalf("got %v %q %v", o.started, o.output.String(), o.exited)
	}
}

func TestExecuteNeedsOneConnection(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	errs := make(chan error)
	for range 50 {
		go func() {
			_, err := h.execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a"})
			errs <- err
		}()
	}
	for range 50 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := h.sandbox("a").dials.Load(); n != 1 {
		t.Fatalf("%d dials", n)
	}
}

func TestExecuteCarriesPolicyAndLimits(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.Access = &sandboxv1.AccessPolicy{WriteDenyPrefixes: []string{"/etc"}}
		c.Limits.MaxTimeout = time.Minute
	})
	_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{
		SandboxId: "a", Spec: &sandboxv1.SandboxSpec{Access: &sandboxv1.AccessPolicy{RootDir: "/workspace"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a", Access: &sandboxv1.AccessPolicy{ReadDenyPrefixes: []string{"/workspace/x"}}})
	if err != nil {
		t.Fatal(err)
	}
	got := h.sandbox("a").agent.last
	if n := len(got.GetConfinement().GetPolicies()); n != 3 {
		t.Fatalf("%d policies: %v", n, got.GetConfinement())
	}
	if got.GetLimits().GetMaxTimeout().AsDuration() != time.Minute {
		t.Fatalf("limits %v", got.GetLimits())
	}
}

func TestExecuteRefusals(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Access = &sandboxv1.AccessPolicy{DenyCommands: []string{"rm -rf /"}} })
	h.create("a")
	shell := &sandboxv1.ExecuteRequest_Shell{Shell: "true"}
	for name, c := range map[string]struct {
		req    *sandboxv1.ExecuteRequest
		reason string
	}{
		"no id":           {&sandboxv1.ExecuteRequest{Command: shell}, "REQUEST_INVALID"},
		"bad id":          {&sandboxv1.ExecuteRequest{SandboxId: "../x", Command: shell}, "REQUEST_INVALID"},
		"unknown sandbox": {&sandboxv1.ExecuteRequest{SandboxId: "b", Command: shell}, "SANDBOX_NOT_FOUND"},
		"other incarnation": {&sandboxv1.ExecuteRequest{SandboxId: "a", Command: shell, ExpectedIncarnation: "old"},
			"SANDBOX_REPLACED"},
		"no command": {&sandboxv1.ExecuteRequest{SandboxId: "a"}, "REQUEST_INVALID"},
		"empty argv": {&sandboxv1.ExecuteRequest{SandboxId: "a",
			Command: &sandboxv1.ExecuteRequest_Argv{Argv: &sandboxv1.Argv{}}}, "REQUEST_INVALID"},
		"relative cwd": {&sandboxv1.ExecuteRequest{SandboxId: "a", Command: shell, Cwd: "x"}, "PATH_INVALID"},
		"bad env": {&sandboxv1.ExecuteRequest{SandboxId: "a", Command: shell, Env: map[string]string{"A=B": "c"}},
			"REQUEST_INVALID"},
		"negative timeout": {&sandboxv1.ExecuteRequest{SandboxId: "a", Command: shell, Timeout: durationpb.New(-1)},
			"REQUEST_INVALID"},
		"empty terminal": {&sandboxv1.ExecuteRequest{SandboxId: "a", Command: shell, Terminal: &sandboxv1.TerminalSize{}},
			"REQUEST_INVALID"},
		"denied shell": {&sandboxv1.ExecuteRequest{SandboxId: "a",
			Command: &sandboxv1.ExecuteRequest_Shell{Shell: "cd /; rm -rf / x"}}, "POLICY_DENIED"},
		"denied argv": {&sandboxv1.ExecuteRequest{SandboxId: "a",
			Command: &sandboxv1.ExecuteRequest_Argv{Argv: &sandboxv1.Argv{Args: []string{"rm", "-rf", "/"}}}}, "POLICY_DENIED"},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := h.client.Execute(t.Context(), c.req)
			if err == nil {
				_, err = stream.Recv()
			}
			wantReason(t, err, c.reason)
		})
	}
}

// The caller's going away must reach the agent as a cancelled call, which
// starts its timer for lost callers.
func TestExecuteCancelReachesAgent(t *testing.T) {
	h := newHarness(t, nil)
	h.provider.script.execute = hang
	h.create("a")
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := h.client.Execute(ctx, &sandboxv1.ExecuteRequest{SandboxId: "a", Command: &sandboxv1.ExecuteRequest_Shell{Shell: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case <-h.sandbox("a").agent.cancelled:
	case <-time.After(30 * time.Second):
		t.Fatal("the cancellation did not reach the agent")
	}
}

// hang starts and sends nothing more until the caller disconnects.
func hang(a *scriptedAgent, _ *sandboxv1.ExecuteRequest, out emitter) error {
	if err := out.started(0); err != nil {
		return err
	}
	<-out.stream.Context().Done()
	a.cancelled <- struct{}{}
	return out.stream.Context().Err()
}

func TestExecutePassesAgentErrorsOn(t *testing.T) {
	h := newHarness(t, nil)
	h.provider.script.execute = func(_ *scriptedAgent, _ *sandboxv1.ExecuteRequest, _ emitter) error {
		return agentStatus(5, "COMMAND_NOT_FOUND", "there is no program \"nope\"")
	}
	h.create("a")
	_, err := h.execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a"})
	wantReason(t, err, "COMMAND_NOT_FOUND")
}
