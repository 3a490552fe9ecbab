package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/lifetime/clocktest"
	"github.com/sandgate/sandgate/server/names"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// What a round does with long overdue sandboxes.
const (
	lateWait  = 10 * time.Minute
	lateLeast = 10
)

// leaping is a harness whose clocks the test sets.
func leaping(t *testing.T) (*harness, *clocktest.Clock) {
	t.Helper()
	f := clocktest.New()
	h := newHarness(t, func(c *Config) {
		c.readClock, c.Provider = f.Read, unled{c.Provider.(*scriptedProvider)}
		c.random = rand.New(rand.NewPCG(1, 2)).IntN
	})
	return h, f
}

// idleFor is the idle time of an agent that has been idle for ago by now.
func idleFor(f *clocktest.Clock, ago time.Duration) *func() time.Duration {
	_, start := f.Read()
	idle := func() time.Duration {
		_, now := f.Read()
		return now - start + ago
	}
	return &idle
}

func (h *harness) reap() {
	h.t.Helper()
	if err := h.server.reaper.Round(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// A wall clock that is set forward ends no lifetime, of whatever kind, and none
// ends early or much later than it should.
func TestAClockThatLeapsDeletesNothing(t *testing.T) {
	h, f := leaping(t)
	h.createFor("idle", time.Hour)
	_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{
		SandboxId: "aged", Ttl: durationpb.New(2 * time.Hour), IdleTtl: durationpb.New(0),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"idle", "aged"} {
		h.sandbox(id).agent.idle.Store(idleFor(f, 0))
	}
	f.Pass(time.Minute)
	f.Set(25 * time.Hour)
	h.reap()
	if h.gone("idle") || h.gone("aged") {
		t.Fatal("a leap of 25 hours deleted a sandbox")
	}
	if err := h.stat("aged"); err != nil {
		t.Errorf("a call is refused after a leap: %v", err)
	}
	resp, err := h.client.CleanupSandboxes(t.Context(), &sandboxv1.CleanupSandboxesRequest{})
	if err != nil || len(resp.GetDeletedSandboxIds()) > 0 {
		t.Errorf("cleanup: %v, %v", resp, err)
	}
	// A server that has not seen the leap spares the idle one too.
	p := h.sandbox("idle")
	h.provider.mu.Lock()
	last := p.info.LastActivity
	h.provider.mu.Unlock()
	if now, _ := f.Read(); now.Sub(last) > 2*time.Minute {
		t.Errorf("by its record it was idle for %v", now.Sub(last))
	}
	f.Pass(61 * time.Minute)
	h.reap()
	if !h.gone("idle") || h.gone("aged") {
		t.Error("after an hour the idle one is to be gone, and no other")
	}
	f.Pass(61 * time.Minute)
	h.reap()
	if !h.gone("aged") {
		t.Error("after two hours the other is still there")
	}
}

// A wall clock that was set forward while no server ran leaves a record that looks
// old. The agent measures a duration, so the sandbox stays and its record is
// corrected.
func TestClockSetForwardBeforeTheStartDeletesNothing(t *testing.T) {
	h, f := leaping(t)
	h.createFor("a", time.Hour)
	h.age("a", 61*time.Minute)
	h.sandbox("a").agent.idle.Store(idleFor(f, time.Minute))
	resp, err := h.client.CleanupSandboxes(t.Context(), &sandboxv1.CleanupSandboxesRequest{MaxIdle: durationpb.New(time.Hour)})
	if err != nil || len(resp.GetDeletedSandboxIds()) > 0 {
		t.Errorf("cleanup: %v, %v", resp, err)
	}
	h.reap()
	if h.gone("a") {
		t.Fatal("a sandbox that its agent used a minute ago was deleted")
	}
	h.provider.mu.Lock()
	last := h.provider.sandboxes[names.Substrate(call.DefaultTenant, "a")].info.LastActivity
	h.provider.mu.Unlock()
	if now, _ := f.Read(); now.Sub(last) > 2*time.Minute {
		t.Errorf("the record still says that it was idle for %v", now.Sub(last))
	}
	f.Pass(60 * time.Minute)
	h.reap()
	if !h.gone("a") {
		t.Error("an hour later it is still there")
	}
}

// A server that starts finds much that is long overdue: it waits, in case its
// clock is wrong, and then deletes a share in each round.
func TestWhatIsLongOverdueGoesLittleByLittle(t *testing.T) {
	h, f := leaping(t)
	const many = 25
	for i := range many {
		id := fmt.Sprintf("old-%02d", i)
		h.createFor(id, time.Hour)
		h.age(id, 26*time.Hour)
		h.sandbox(id).agent.idle.Store(idleFor(f, 26*time.Hour))
	}
	h.createFor("due", time.Hour)
	h.age("due", 61*time.Minute)
	h.sandbox("due").agent.idle.Store(idleFor(f, 61*time.Minute))
	h.reap()
	if n := h.count(); n != many || !h.gone("due") {
		t.Errorf("after the start %d are left, want %d: all but what is just due", n, many)
	}
	f.Pass(lateWait)
	for _, want := range []int{many - lateLeast, many - 2*lateLeast, 0} {
		h.reap()
		if n := h.count(); n != want {
			t.Errorf("%d are left, want %d", n, want)
		}
	}
}

// Sandboxes that cannot be deleted, or are being deleted, do not keep the others
// from it, wherever they are in the provider's order.
func TestWhatCannotBeDeletedHoldsUpNoOther(t *testing.T) {
	for _, deleting := range []bool{false, true} {
		t.Run(fmt.Sprintf("deleting %t", deleting), func(t *testing.T) {
			h, f := leaping(t)
			const stuck, others = 3 * lateLeast, 5
			var prefix []string // of the provider's order
			for i := range stuck + others {
				id := fmt.Sprintf("old-%02d", i)
				h.createFor(id, time.Hour)
				h.age(id, 26*time.Hour)
				prefix = append(prefix, names.Substrate(call.DefaultTenant, id))
			}
			slices.Sort(prefix)
			prefix = prefix[:stuck]
			h.provider.mu.Lock()
			for _, name := range prefix {
				if deleting {
					h.provider.sandboxes[name].info.State = providers.StateDeleting
				}
			}
			h.provider.mu.Unlock()
			h.provider.before = func(_ context.Context, method, name string) error {
				if method == "delete" && slices.Contains(prefix, name) {
					return errors.New("it cannot be deleted")
				}
				return nil
			}
			f.Pass(lateWait)
			// Those that are being deleted take no share at all.
			rounds := 30
			if deleting {
				rounds = 1
			}
			for range rounds {
				h.reap()
			}
			if n := h.count(); n != stuck {
				t.Errorf("%d are left, want %d", n, stuck)
			}
		})
	}
}
