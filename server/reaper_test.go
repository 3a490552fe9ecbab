package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
)

// led is a provider that servers share.
type led struct {
	*scriptedProvider
	begin, finish chan struct{}
	causes        chan error
}

var errDeposed = errors.New("another leads now")

func (l *led) Lead(ctx context.Context, do func(context.Context)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.begin:
		}
		term, end := context.WithCancelCause(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			do(term)
			l.causes <- context.Cause(term)
		}()
		select {
		case <-ctx.Done():
		case <-l.finish:
			end(errDeposed)
		}
		<-done
		end(nil)
	}
}

func (*led) Lapses() bool { return true }

// sticky is a provider whose leader, another server, is stopped.
type sticky struct{ *scriptedProvider }

func (sticky) Lead(ctx context.Context, _ func(context.Context)) { <-ctx.Done() }
func (sticky) Lapses() bool                                      { return false }

// A leader that is stopped, and whose leadership cannot end, keeps no sandbox beyond its
// lifetime: the other servers reap.
func TestReapBesideAStoppedLeader(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.Provider = sticky{c.Provider.(*scriptedProvider)}
		c.Timing.ReapInterval = time.Millisecond
	})
	_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a", Ttl: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	p := h.sandbox("a")
	h.provider.mu.Lock()
	p.info.CreateTime = p.info.CreateTime.Add(-61 * time.Minute)
	h.provider.mu.Unlock()
	h.until("it is reaped", func() bool { return h.gone("a") })
}

// hasty panics when it is to lead for the first time.
type hasty struct {
	*scriptedProvider
	terms atomic.Int32
}

func (h *hasty) Lead(ctx context.Context, do func(context.Context)) {
	if h.terms.Add(1) == 1 {
		panic("lead")
	}
	do(ctx)
}

func (*hasty) Lapses() bool { return true }

// A provider that panics while the server waits to reap delays that, no more.
func TestReaperSurvivesAPanic(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.Provider = &hasty{scriptedProvider: c.Provider.(*scriptedProvider)}
		c.Timing.ReapInterval = time.Millisecond
	})
	_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a", Ttl: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	p := h.sandbox("a")
	h.provider.mu.Lock()
	p.info.CreateTime = p.info.CreateTime.Add(-61 * time.Minute)
	h.provider.mu.Unlock()
	h.until("it is reaped", func() bool { return h.gone("a") })
}

func (h *harness) gone(id string) bool {
	h.t.Helper()
	_, err := h.client.GetSandbox(h.t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: id})
	if err != nil && status.Code(err) != codes.NotFound {
		h.t.Fatal(err)
	}
	return err != nil
}

func (h *harness) until(what string, done func() bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			h.t.Fatal("not in half a minute: ", what)
		case <-tick.C:
		}
	}
}

// Of servers that share a provider the one that leads reaps, for as long as it
// leads.
func TestOnlyTheLeaderReaps(t *testing.T) {
	var provider *led
	h := newHarness(t, func(c *Config) {
		provider = &led{scriptedProvider: c.Provider.(*scriptedProvider), begin: make(chan struct{}), finish: make(chan struct{}), causes: make(chan error, 4)}
		c.Provider = provider
		c.Timing.ReapInterval = time.Millisecond
	})
	short := func(id string) {
		_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: id, Ttl: durationpb.New(time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		h.provider.mu.Lock()
		defer h.provider.mu.Unlock()
		p := h.provider.sandboxes[names.Substrate(call.DefaultTenant, id)]
		p.info.CreateTime = p.info.CreateTime.Add(-time.Minute)
	}
	short("before")
	if h.gone("before") {
		t.Error("one that does not lead has reaped")
	}
	provider.begin <- struct{}{}
	h.until("the leader reaps", func() bool { return h.gone("before") })
	provider.finish <- struct{}{}
	if err := <-provider.causes; !errors.Is(err, errDeposed) {
		t.Errorf("it ended for %v", err)
	}
	short("after")
	if h.gone("after") {
		t.Error("one that leads no more has reaped")
	}
	provider.begin <- struct{}{}
	h.until("it leads again and reaps", func() bool { return h.gone("after") })
}

// Agents that do not answer delay no other sandbox, and the next round skips
// them.
func TestReaperPassesOverTheSilent(t *testing.T) {
	h := newHarness(t, nil)
	away := error(fmt.Errorf("away: %w", providers.ErrUnavailable))
	idle := func(id string) {
		_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: id, IdleTtl: durationpb.New(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		h.provider.mu.Lock()
		defer h.provider.mu.Unlock()
		p := h.provider.sandboxes[names.Substrate(call.DefaultTenant, id)]
		p.info.LastActivity = p.info.LastActivity.Add(-61 * time.Minute)
	}
	const silent = 40
	for i := range silent {
		id := fmt.Sprintf("silent-%d", i)
		idle(id)
		h.sandbox(id).cut()
		h.sandbox(id).dialErr.Store(&away)
	}
	idle("idle")
	var round sync.WaitGroup
	began := time.Now()
	round.Go(func() {
		if err := h.server.reaper.Round(t.Context()); err != nil {
			t.Error(err)
		}
	})
	h.until("the one that answers is deleted", func() bool { return h.gone("idle") })
	round.Wait()
	first := time.Since(began)
	if h.gone("silent-0") {
		t.Error("a sandbox was deleted although it may be in use")
	}
	gets := h.provider.gets.Load()
	if err := h.server.reaper.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := h.provider.gets.Load(); now != gets {
		t.Errorf("%d of them were looked at again at once; the first round took %v", now-gets, first)
	}
}
