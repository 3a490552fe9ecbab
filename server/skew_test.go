package server

import (
	"bytes"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sandgate/sandgate/agent/protocol"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Server and agent may be one minor apart, either way; beyond that the refusal
// names both, and nothing unusable is left behind.
func TestAgentMayBeOneMinorApart(t *testing.T) {
	const own = 7
	for _, c := range []struct {
		agent  int32
		served bool
	}{{own - 2, false}, {own - 1, true}, {own, true}, {own + 1, true}, {own + 2, false}, {-1, false}} {
		t.Run(fmt.Sprintf("%d to %d", own, c.agent), func(t *testing.T) {
			h := newHarness(t, func(c *Config) { c.protocolMinor = own })
			h.provider.script.minor = c.agent
			_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a"})
			if c.served {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantReason(t, err, "AGENT_VERSION_UNSUPPORTED")
			if m := metadataOf(t, err); m["agent_version"] != "test" || m["server_version"] == "" {
				t.Errorf("%v: %v", err, m)
			}
			if _, err := h.client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: "a"}); status.Code(err) != codes.NotFound {
				t.Fatalf("an unusable sandbox was left behind: %v", err)
			}
		})
	}
}

// later is a field that no version knows yet.
var later = protowire.AppendString(protowire.AppendTag(nil, 5000, protowire.BytesType), "later")

// An agent one minor older serves the calls it has, and rejects others with a
// reason.
func TestOlderAgentRejectsUnknownCalls(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.protocolMinor = protocol.Minor + 1 })
	h.provider.script.minor = protocol.Minor
	h.create("a")
	o, err := h.execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a"})
	if err != nil || o.output.String() != "hello" {
		t.Fatalf("%v, %v", o, err)
	}
	// The double does not know this call, as an old agent does not know one
	// that came later.
	_, err = h.client.GlobFiles(t.Context(), &sandboxv1.GlobFilesRequest{SandboxId: "a", Path: "/", Pattern: "*"})
	wantReason(t, err, "FEATURE_UNSUPPORTED")
	if metadataOf(t, err)["feature"] != "agent" {
		t.Errorf("%v", err)
	}
	if _, err := h.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "a", Path: "/x"}); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// Of an agent one minor newer nothing unknown reaches the caller, and nothing
// unknown is in the way.
func TestNewerAgentSendsNothingUnknown(t *testing.T) {
	h := newHarness(t, nil)
	h.provider.script.minor = protocol.Minor + 1
	h.provider.script.extra = later
	h.provider.script.execute = func(_ *scriptedAgent, _ *sandboxv1.ExecuteRequest, out emitter) error {
		started := &sandboxv1.Started{ExecId: out.execID, Incarnation: out.incarnation}
		started.ProtoReflect().SetUnknown(later)
		if err := out.send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Started{Started: started}}); err != nil {
			return err
		}
		return out.exited(0, 0)
	}
	h.create("a")
	stream, err := h.client.Execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a",
		Command: &sandboxv1.ExecuteRequest_Shell{Shell: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil || m.GetStarted() == nil {
		t.Fatalf("%v, %v", m, err)
	}
	if raw, err := proto.Marshal(m); err != nil || bytes.Contains(raw, []byte("later")) {
		t.Errorf("%q, %v", raw, err)
	}
	if m, err := stream.Recv(); err != nil || m.GetExited() == nil {
		t.Fatalf("%v, %v", m, err)
	}
}
