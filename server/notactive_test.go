package server

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
)

// refusing is a provider whose sandboxes are in no state for anything.
type refusing struct {
	*scriptedProvider
	err error
}

func (r refusing) Create(context.Context, string, providers.Spec) (providers.Info, net.Conn, error) {
	return providers.Info{}, nil, r.err
}

func (r refusing) Update(context.Context, string, providers.Change) (providers.Info, error) {
	return providers.Info{}, r.err
}

func (r refusing) Dial(context.Context, string) (net.Conn, error) { return nil, r.err }

func (r refusing) Suspend(context.Context, string) (providers.Info, error) {
	return providers.Info{}, r.err
}

func (r refusing) Resume(context.Context, string) (providers.Info, net.Conn, error) {
	return providers.Info{}, nil, r.err
}

// Callers decide by the state, whichever call is refused, and whether the
// server finds out or the provider.
func TestNotActiveSaysTheState(t *testing.T) {
	info := providers.Info{State: providers.StateFailed, Failure: providers.FailureOutOfMemory, Message: "it grew"}
	h := newHarness(t, func(c *Config) {
		m, ok := c.Provider.(*scriptedProvider)
		if !ok {
			t.Fatalf("the provider is %T", c.Provider)
		}
		c.Provider = refusing{scriptedProvider: m, err: providers.NotActive(info, "it is %s", info.Status())}
	})
	name := names.Substrate(call.DefaultTenant, "a")
	spec := providers.Spec{Tenant: call.DefaultTenant, ID: "a"}
	h.provider.make(name, spec)
	for call, err := range map[string]error{
		"create":  call1(h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a"})),
		"update":  call1(h.client.UpdateSandbox(t.Context(), &sandboxv1.UpdateSandboxRequest{SandboxId: "a", Renew: true})),
		"suspend": call1(h.client.SuspendSandbox(t.Context(), &sandboxv1.SuspendSandboxRequest{SandboxId: "a"})),
		"resume":  call1(h.client.ResumeSandbox(t.Context(), &sandboxv1.ResumeSandboxRequest{SandboxId: "a"})),
		"dial":    call1(h.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "a", Path: "/x"})),
	} {
		t.Run(call, func(t *testing.T) {
			wantReason(t, err, "SANDBOX_NOT_ACTIVE")
			m := metadataOf(t, err)
			if m["sandbox_id"] != "a" || m["state"] != "FAILED" || m["failure"] != "OUT_OF_MEMORY" {
				t.Errorf("metadata %v", m)
			}
			text := "it is failed: it grew"
			if call == "dial" {
				text = "dial the agent: " + text
			}
			if got := status.Convert(err).Message(); got != text {
				t.Errorf("message %q, want %q", got, text)
			}
		})
	}
}
