package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
)

// A provider whose Dial does not return holds a shutdown up no longer than its
// caller wants.
func TestShutdownEndsWithItsContext(t *testing.T) {
	hang, hanging := make(chan struct{}), make(chan struct{}, 1)
	h := newHarness(t, func(c *Config) {
		c.Provider.(*scriptedProvider).before = func(_ context.Context, method, _ string) error {
			if method != "dial" {
				return nil
			}
			hanging <- struct{}{}
			<-hang
			return providers.ErrUnavailable
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = h.server.agents.Inspect(ctx, agentconn.Key{Tenant: defaultTenant, ID: "a", Name: h.bare("a")})
	}()
	<-hanging
	cancel()
	done := make(chan error, 1)
	go func() { done <- h.server.Shutdown(ctx) }()
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
func (h *harness) bare(id string) string {
	h.t.Helper()
	name := substrateName(defaultTenant, id)
	h.provider.make(name, providers.Spec{Tenant: defaultTenant, ID: id})
	return name
}
