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
)

// led is a provider that servers share.
type led struct {
	*memory
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

// hasty panics when it is to lead for the first time.
type hasty struct {
	*memory
	terms atomic.Int32
}

func (h *hasty) Lead(ctx context.Context, do func(context.Context)) {
	if h.terms.Add(1) == 1 {
		panic("lead")
	}
	do(ctx)
}

// A provider that panics while the server waits to reap delays that, no more.
func TestReaperSurvivesAPanic(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Provider = &hasty{memory: c.Provider.(*memory)}
		c.Timing.ReapInterval = time.Millisecond
	})
	_, err := w.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a", Ttl: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	p := w.place("a")
	w.provider.mu.Lock()
	p.info.CreateTime = p.info.CreateTime.Add(-61 * time.Minute)
	w.provider.mu.Unlock()
	w.until("it is reaped", func() bool { return w.gone("a") })
}

func (w *world) gone(id string) bool {
	w.t.Helper()
	_, err := w.client.GetSandbox(w.t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: id})
	if err != nil && status.Code(err) != codes.NotFound {
		w.t.Fatal(err)
	}
	return err != nil
}

func (w *world) until(what string, done func() bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			w.t.Fatal("not in half a minute: ", what)
		case <-tick.C:
		}
	}
}

// Of servers that share a provider the one that leads reaps, for as long as it
// leads.
func TestReaperLeads(t *testing.T) {
	var provider *led
	w := newWorld(t, func(c *Config) {
		provider = &led{memory: c.Provider.(*memory), begin: make(chan struct{}), finish: make(chan struct{}), causes: make(chan error, 4)}
		c.Provider = provider
		c.Timing.ReapInterval = time.Millisecond
	})
	short := func(id string) {
		_, err := w.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: id, Ttl: durationpb.New(time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		w.provider.mu.Lock()
		defer w.provider.mu.Unlock()
		p := w.provider.places[substrateName(defaultTenant, id)]
		p.info.CreateTime = p.info.CreateTime.Add(-time.Minute)
	}
	short("before")
	if w.gone("before") {
		t.Error("one that does not lead has reaped")
	}
	provider.begin <- struct{}{}
	w.until("the leader reaps", func() bool { return w.gone("before") })
	provider.finish <- struct{}{}
	if err := <-provider.causes; !errors.Is(err, errDeposed) {
		t.Errorf("it ended for %v", err)
	}
	short("after")
	if w.gone("after") {
		t.Error("one that leads no more has reaped")
	}
	provider.begin <- struct{}{}
	w.until("it leads again and reaps", func() bool { return w.gone("after") })
}

// Agents that do not answer make no other sandbox late, and are not asked again
// at once.
func TestReaperPassesOverTheSilent(t *testing.T) {
	w := newWorld(t, nil)
	away := error(fmt.Errorf("away: %w", providers.ErrUnavailable))
	idle := func(id string) {
		_, err := w.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: id, IdleTtl: durationpb.New(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		w.provider.mu.Lock()
		defer w.provider.mu.Unlock()
		p := w.provider.places[substrateName(defaultTenant, id)]
		p.info.LastActivity = p.info.LastActivity.Add(-61 * time.Minute)
	}
	const silent = 40
	for i := range silent {
		id := fmt.Sprintf("silent-%d", i)
		idle(id)
		w.place(id).cut()
		w.place(id).dialErr.Store(&away)
	}
	idle("idle")
	var round sync.WaitGroup
	began := time.Now()
	round.Go(func() {
		if err := w.server.reaper.Round(t.Context()); err != nil {
			t.Error(err)
		}
	})
	w.until("the one that answers is deleted", func() bool { return w.gone("idle") })
	round.Wait()
	first := time.Since(began)
	if w.gone("silent-0") {
		t.Error("a sandbox was deleted although nobody knows whether it is idle")
	}
	gets := w.provider.gets.Load()
	if err := w.server.reaper.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := w.provider.gets.Load(); now != gets {
		t.Errorf("%d of them were looked at again at once; the first round took %v", now-gets, first)
	}
}
