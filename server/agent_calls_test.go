package server

import (
	"slices"
	"strings"
	"testing"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Every unary call of sandbox.v1 that agents serve is passed on.
func TestAgentCallsAreComplete(t *testing.T) {
	var passed []string
	for _, c := range agentCalls {
		passed = append(passed, c.method)
	}
	public := sandboxv1.File_sandbox_v1_sandbox_service_proto.Services().ByName("SandboxService").Methods()
	methods := agentv1.File_sandbox_agent_v1_agent_service_proto.Services().ByName("AgentService").Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		same := public.ByName(m.Name())
		if same == nil || m.IsStreamingClient() || m.IsStreamingServer() {
			continue
		}
		if m.Input() != same.Input() || m.Output() != same.Output() {
			t.Errorf("%s has other messages in AgentService", m.Name())
		}
		n := slices.Index(passed, string(m.Name()))
		if n < 0 {
			t.Errorf("%s is not in agentCalls", m.Name())
			continue
		}
		passed = slices.Delete(passed, n, n+1)
	}
	if len(passed) > 0 {
		t.Errorf("agentCalls has %q, which agents do not serve", passed)
	}
}

// An agent's reply without its only message is a breach of the protocol.
func TestReplyWithoutInfo(t *testing.T) {
	h := newHarness(t, nil)
	h.provider.script.stat = func(*sandboxv1.StatFileRequest) (*sandboxv1.StatFileResponse, error) {
		return &sandboxv1.StatFileResponse{}, nil
	}
	h.create("a")
	_, err := h.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "a", Path: "/x"})
	wantReason(t, err, "AGENT_MISBEHAVED")
}

// An access policy is bounded where it enters, so that no call context is too large
// for the agent.
func TestAccessPolicyIsBounded(t *testing.T) {
	h := newHarness(t, nil)
	policy := func(n int) *sandboxv1.AccessPolicy {
		p := &sandboxv1.AccessPolicy{}
		for range n {
			p.ReadDenyPrefixes = append(p.ReadDenyPrefixes, "/"+strings.Repeat("x", 997)) // 1 001 bytes, encoded
		}
		return p
	}
	const fit = 65
	spec := func(n int) *sandboxv1.SandboxSpec { return &sandboxv1.SandboxSpec{Access: policy(n)} }
	_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a", Spec: spec(fit + 1)})
	wantReason(t, err, "REQUEST_INVALID")
	if _, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a", Spec: spec(fit)}); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]string{fit: "", fit + 1: "REQUEST_INVALID"} {
		_, err := h.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "a", Path: "/x", Access: policy(n)})
		if want == "" && err != nil {
			t.Errorf("at the bound: %v", err)
		} else if want != "" {
			wantReason(t, err, want)
		}
		_, err = h.execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a", Access: policy(n)})
		if want == "" && err != nil {
			t.Errorf("a command at the bound: %v", err)
		} else if want != "" {
			wantReason(t, err, want)
		}
	}
}
