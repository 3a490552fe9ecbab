package server

import (
	"strings"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// An agent's reply without its only message is a breach of the protocol.
func TestReplyWithoutItsMessageIsMisbehaviour(t *testing.T) {
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
