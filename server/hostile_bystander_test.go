package server

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// While an agent misbehaves, also without an end, another sandbox is served as
// ever.
func TestHostileAgentDoesNotDisturbOthers(t *testing.T) {
	for name, attack := range map[string]func(out emitter) error{
		"gap without end": func(out emitter) error {
			return errors.Join(out.started(0), out.gap(0, math.MaxInt64), out.output(math.MaxInt64, "x"))
		},
		"gaps for ever": func(out emitter) error {
			err := out.started(0)
			for at := int64(0); err == nil; at++ {
				err = out.gap(at, at)
			}
			return err
		},
		"starts for ever": func(out emitter) error {
			err := out.started(0)
			for err == nil {
				err = out.started(0)
			}
			return err
		},
		"output back and forth": func(out emitter) error {
			return errors.Join(out.started(0), out.output(0, "abc"), out.output(1, "bc"))
		},
		"garbage for ever": func(out emitter) error {
			err := out.started(0)
			for err == nil {
				err = out.raw([]byte{0xff, 0x00, 0xff})
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil)
			h.provider.script.execute = func(_ *scriptedAgent, req *sandboxv1.ExecuteRequest, out emitter) error {
				if req.GetShell() == "well" {
					return errors.Join(out.started(0), out.exited(0, 0))
				}
				_ = attack(out) // Sending fails once the server has hung up.
				return nil
			}
			h.create("hostile")
			h.create("bystander")
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			ill, err := h.client.Execute(ctx, &sandboxv1.ExecuteRequest{
				SandboxId: "hostile", Command: &sandboxv1.ExecuteRequest_Shell{Shell: "ill"}})
			if err != nil {
				t.Fatal(err)
			}
			for range 20 {
				if _, err := h.execute(ctx, &sandboxv1.ExecuteRequest{
					SandboxId: "bystander", Command: &sandboxv1.ExecuteRequest_Shell{Shell: "well"}}); err != nil {
					t.Fatalf("the bystander: %v", err)
				}
			}
			for err == nil {
				_, err = ill.Recv()
			}
			wantReason(t, err, "AGENT_MISBEHAVED")
		})
	}
}

// A child in the background writes after the command's end. The agent's `exited`
// keeps the position of that end; a reader that stays sees where it really is.
func TestReaderSeesOutputAfterTheLeadersEnd(t *testing.T) {
	h := newHarness(t, nil)
	h.provider.script.attach = func(_ *scriptedAgent, _ *sandboxv1.AttachRequest, out emitter) error {
		code := int32(7)
		return errors.Join(out.started(4), out.output(4, "late\n"), out.send(&sandboxv1.ExecuteResponse{
			Event: &sandboxv1.ExecuteResponse_Exited{Exited: &sandboxv1.Exited{
				Reason: sandboxv1.ExitReason_EXIT_REASON_EXITED, ExitCode: &code, Position: 4, OutputOpen: true}}}))
	}
	h.create("a")
	stream, err := h.client.Attach(t.Context(), &sandboxv1.AttachRequest{
		SandboxId: "a", ExecId: "e", Position: 4, FollowUntil: sandboxv1.FollowUntil_FOLLOW_UNTIL_STREAMS_END})
	if err != nil {
		t.Fatal(err)
	}
	var exited *sandboxv1.Exited
	for exited == nil {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		exited = m.GetExited()
	}
	if exited.GetExitCode() != 7 || exited.GetPosition() != 9 {
		t.Errorf("it ended %v", exited)
	}
}
