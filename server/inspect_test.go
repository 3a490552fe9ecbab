package server

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
)

// tick does the server's regular maintenance and waits until it is done.
func (h *harness) tick() {
	h.t.Helper()
	h.server.activity.NoteCalls(h.t.Context(), h.server.agents.Live(), time.Now())
	h.server.activity.Wait()
}

// The reaper inspects the agents of idle sandboxes, which is no use of them: it
// deletes all in the same round.
func TestReapersInspectionRenewsNothing(t *testing.T) {
	h, g := newHeldHarness(t)
	const idle = 10
	for i := range idle {
		h.createFor(fmt.Sprintf("s-%d", i), time.Hour)
		h.age(fmt.Sprintf("s-%d", i), 61*time.Minute)
	}
	var round sync.WaitGroup
	round.Go(func() {
		if err := h.server.reaper.Round(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for range idle {
		<-g.arrived
	}
	h.tick()
	close(g.open)
	round.Wait()
	for i := range idle {
		if !h.gone(fmt.Sprintf("s-%d", i)) {
			t.Errorf("s-%d was kept: the inspection counted as use", i)
		}
	}
}

// A dry cleanup leaves every sandbox as idle as it was.
func TestDryCleanupRenewsNothing(t *testing.T) {
	h := newHarness(t, nil)
	h.createFor("a", time.Hour)
	h.age("a", 30*time.Minute)
	before := h.sandbox("a").info.LastActivity
	resp, err := h.client.CleanupSandboxes(t.Context(),
		&sandboxv1.CleanupSandboxesRequest{MaxIdle: durationpb.New(time.Minute), DryRun: true})
	if err != nil || len(resp.GetDeletedSandboxIds()) != 1 {
		t.Fatalf("%v %v", resp, err)
	}
	h.tick()
	h.provider.mu.Lock()
	defer h.provider.mu.Unlock()
	if after := h.provider.sandboxes[names.Substrate(call.DefaultTenant, "a")].info.LastActivity; !after.Equal(before) {
		t.Errorf("it was last active at %v, and is now at %v", before, after)
	}
}

// Two inspections at once do not count as calls.
func TestInspectionsAtOnceAreNoUse(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	key := agentconn.Key{Tenant: call.DefaultTenant, ID: "a", Name: names.Substrate(call.DefaultTenant, "a")}
	other, err := h.server.agents.Inspect(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.EndInspection()
	resp, err := h.client.CleanupSandboxes(t.Context(),
		&sandboxv1.CleanupSandboxesRequest{MaxIdle: durationpb.New(time.Nanosecond), DryRun: true})
	if err != nil || len(resp.GetDeletedSandboxIds()) != 1 {
		t.Errorf("it counts as in use: %v, %v", resp, err)
	}
}
