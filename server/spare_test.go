package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
)

// gate lets a test wait for calls of a provider's method, and hold them up.
type gate struct {
	arrived chan string // names
	open    chan struct{}
}

func newGate() *gate { return &gate{arrived: make(chan string, 1000), open: make(chan struct{})} }

func (g *gate) pass(ctx context.Context, name string) error {
	g.arrived <- name
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reapDeletes is how many sandboxes the reaper deletes at the same time.
const reapDeletes = 32

// unled is a provider for whose server nothing reaps but the test.
type unled struct{ *scriptedProvider }

func (unled) Lead(ctx context.Context, _ func(context.Context)) { <-ctx.Done() }
func (unled) Lapses() bool                                      { return true }

// age makes a sandbox older, as its provider and every later connection see it.
func (h *harness) age(id string, by time.Duration) {
	h.t.Helper()
	p := h.sandbox(id)
	h.provider.mu.Lock()
	p.info.CreateTime, p.info.LastActivity = p.info.CreateTime.Add(-by), p.info.LastActivity.Add(-by)
	h.provider.mu.Unlock()
	p.cut()
	h.until("the old connection is gone", func() bool { return h.server.agents.Peek(p.info.Name) == nil })
}

func (h *harness) createFor(id string, idle time.Duration) {
	h.t.Helper()
	_, err := h.client.CreateSandbox(h.t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: id, IdleTtl: durationpb.New(idle)})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) stat(id string) error {
	_, err := h.client.StatFile(h.t.Context(), &sandboxv1.StatFileRequest{SandboxId: id, Path: "/x"})
	return err
}

// newHeldHarness is a harness whose deletions wait at the gate.
func newHeldHarness(t *testing.T) (*harness, *gate) {
	t.Helper()
	g := newGate()
	return newHarness(t, func(c *Config) {
		m := c.Provider.(*scriptedProvider)
		c.Provider = unled{m}
		m.before = func(ctx context.Context, method, name string) error {
			if method != "delete" {
				return nil
			}
			return g.pass(ctx, name)
		}
	}), g
}

// A sandbox that was idle when the reaper looked and is used before the deletion
// begins stays, whether it waits for its turn or for the provider.
func TestReaperSparesWhatIsUsedMeanwhile(t *testing.T) {
	h, g := newHeldHarness(t)
	ids := map[string]string{}
	for i := range reapDeletes + 1 {
		id := fmt.Sprintf("s-%d", i)
		ids[names.Substrate(call.DefaultTenant, id)] = id
		h.createFor(id, time.Hour)
		h.age(id, 61*time.Minute)
	}
	var round sync.WaitGroup
	round.Go(func() {
		if err := h.server.reaper.Round(t.Context()); err != nil {
			t.Error(err)
		}
	})
	var used []string
	for range reapDeletes {
		name := <-g.arrived
		if len(used) == 0 {
			used = append(used, ids[name])
		}
		delete(ids, name)
	}
	for _, waits := range ids {
		used = append(used, waits)
	}
	if len(used) != 2 {
		t.Fatalf("%d deletions at once", reapDeletes+1-len(ids))
	}
	for _, id := range used {
		if err := h.stat(id); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
	}
	close(g.open)
	round.Wait()
	for _, id := range used {
		if h.gone(id) {
			t.Errorf("%s was deleted although it is in use", id)
		}
	}
}

// A call that comes when the deletion has begun is refused, and never made in a
// sandbox that is about to go.
func TestCallToASandboxThatIsDeletedIsRefused(t *testing.T) {
	var deleting atomic.Bool
	var reached atomic.Int32
	h := newHarness(t, func(c *Config) {
		m := c.Provider.(*scriptedProvider)
		c.Provider = unled{m}
		m.before = func(_ context.Context, method, name string) error {
			switch {
			case method != "update":
				return nil
			case deleting.Load():
				return providers.NotActive(providers.Info{State: providers.StateDeleting}, "update %s", name)
			default:
				return fmt.Errorf("update %s: %w", name, providers.ErrUnavailable)
			}
		}
		m.script.stat = func(*sandboxv1.StatFileRequest) (*sandboxv1.StatFileResponse, error) {
			reached.Add(1)
			return &sandboxv1.StatFileResponse{Info: &sandboxv1.FileInfo{}}, nil
		}
	})
	h.createFor("a", time.Hour)
	h.age("a", 61*time.Minute)
	deleting.Store(true)
	wantReason(t, h.stat("a"), "SANDBOX_NOT_ACTIVE")
	if n := reached.Load(); n != 0 {
		t.Errorf("%d calls reached the agent", n)
	}
	// A provider that cannot write activity cannot delete either.
	deleting.Store(false)
	if err := h.stat("a"); err != nil {
		t.Errorf("without activity written: %v", err)
	}
}

// A sandbox whose TTL was prolonged while its deletion waited stays.
func TestReaperSparesWhatIsProlonged(t *testing.T) {
	h, g := newHeldHarness(t)
	for _, id := range []string{"prolonged", "busy"} {
		_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: id, Ttl: durationpb.New(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		h.age(id, 61*time.Minute)
	}
	var round sync.WaitGroup
	round.Go(func() {
		if err := h.server.reaper.Round(t.Context()); err != nil {
			t.Error(err)
		}
	})
	<-g.arrived
	<-g.arrived
	_, err := h.client.UpdateSandbox(t.Context(), &sandboxv1.UpdateSandboxRequest{SandboxId: "prolonged", Ttl: durationpb.New(2 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	busy := h.sandbox("busy").info.Name
	if _, err := h.provider.Update(t.Context(), busy, providers.Change{LastActivity: time.Now()}); err != nil {
		t.Fatal(err)
	}
	close(g.open)
	round.Wait()
	if h.gone("prolonged") {
		t.Error("the prolonged one was deleted")
	}
	if !h.gone("busy") {
		t.Error("activity saved one whose TTL has passed")
	}
}

// A provider that does not take activity holds calls up once, and not each after
// the other.
func TestCallsDoNotQueueForAProviderThatFails(t *testing.T) {
	g := newGate()
	h := newHarness(t, func(c *Config) {
		m := c.Provider.(*scriptedProvider)
		c.Provider = unled{m}
		m.before = func(ctx context.Context, method, name string) error {
			if method != "update" {
				return nil
			}
			return errors.Join(g.pass(ctx, name), providers.ErrUnavailable)
		}
	})
	h.createFor("a", time.Hour)
	h.age("a", 59*time.Minute)
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() {
			if err := h.stat("a"); err != nil {
				t.Error(err)
			}
		})
	}
	<-g.arrived
	close(g.open)
	calls.Wait()
	// One more may be in the background.
	if n := len(g.arrived); n > 1 {
		t.Errorf("%d further attempts to write", n)
	}
}
