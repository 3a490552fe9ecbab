package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// A tunnel that is dropped while it is opened is cut, whichever comes first.
func TestDropDuringAnOpeningLeavesNoTunnel(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Provider = unled{c.Provider.(*memory)} })
	w.create("a")
	b := box{tenant: defaultTenant, id: "a", name: substrateName(defaultTenant, "a")}
	ts := w.server.tunnels
	ts.drop(b.name)
	opened := make(chan struct{}, 10_000)
	ts.dialled = func(context.Context, error) { opened <- struct{}{} }
	for range 300 {
		got := make(chan *tunnel, 1)
		go func() {
			l, _ := ts.look(t.Context(), b)
			got <- l
		}()
		<-opened
		ts.drop(b.name)
		if l := <-got; l != nil {
			l.endLook() // of an attempt after the drop
		}
		ts.drop(b.name)
		for len(opened) > 0 {
			<-opened
		}
	}
	ended := make(chan struct{})
	go func() { defer close(ended); ts.wait() }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("a dropped tunnel is open")
	}
}

// A provider whose Dial does not return holds a shutdown up no longer than its
// caller wants.
func TestShutdownEndsWithItsContext(t *testing.T) {
	hang, hanging := make(chan struct{}), make(chan struct{}, 1)
	w := newWorld(t, func(c *Config) {
		c.Provider.(*memory).before = func(_ context.Context, method, _ string) error {
			if method != "dial" {
				return nil
			}
			hanging <- struct{}{}
			<-hang
			return providers.ErrUnavailable
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _, _ = w.server.tunnels.look(ctx, box{tenant: defaultTenant, id: "a", name: w.bare("a")}) }()
	<-hanging
	cancel()
	done := make(chan error, 1)
	go func() { done <- w.server.Shutdown(ctx) }()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits for the provider")
	}
	close(hang)
}

// bare makes a sandbox that the server has no tunnel to, and returns its name.
func (w *world) bare(id string) string {
	w.t.Helper()
	name := substrateName(defaultTenant, id)
	w.provider.make(name, providers.Spec{Tenant: defaultTenant, ID: id})
	return name
}
