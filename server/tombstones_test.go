package server

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
)

// A sandbox whose deletion fails has no tombstone: after its tenant deletes it,
// it is not found instead of expired.
func TestFailedDeletionLeavesNoTombstone(t *testing.T) {
	for _, fails := range []error{providers.ErrInUse, providers.ErrReplaced, providers.ErrUnavailable, errors.New("broken")} {
		t.Run(fails.Error(), func(t *testing.T) {
			var fail atomic.Bool
			h := newHarness(t, func(c *Config) {
				m := c.Provider.(*scriptedProvider)
				c.Provider = unled{m}
				m.before = func(_ context.Context, method, name string) error {
					if method == "delete" && fail.Load() {
						return fmt.Errorf("%s: %w", name, fails)
					}
					return nil
				}
			})
			h.createFor("a", time.Hour)
			h.age("a", 61*time.Minute)
			fail.Store(true)
			h.reap()
			fail.Store(false)
			if _, err := h.client.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "a"}); err != nil {
				t.Fatal(err)
			}
			wantReason(t, h.stat("a"), "SANDBOX_NOT_FOUND")
		})
	}
}

// A sandbox that could be updated has not expired.
func TestUpdateRemovesTheTombstone(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	h.server.expired.Add(names.Substrate(call.DefaultTenant, "a"), time.Now())
	_, err := h.client.UpdateSandbox(t.Context(), &sandboxv1.UpdateSandboxRequest{SandboxId: "a", Ttl: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
	wantReason(t, h.stat("a"), "SANDBOX_NOT_FOUND")
}
