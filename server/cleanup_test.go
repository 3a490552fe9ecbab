package server

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
)

// A provider that panics costs one sandbox's cleanup, and not the server.
func TestCleanupSurvivesAPanic(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.Provider.(*scriptedProvider).before = func(_ context.Context, method, name string) error {
			if method == "delete" && name == names.Substrate(call.DefaultTenant, "bad") {
				panic("delete " + name)
			}
			return nil
		}
	})
	h.create("bad")
	h.create("good")
	resp, err := h.client.CleanupSandboxes(t.Context(), &sandboxv1.CleanupSandboxesRequest{MaxIdle: durationpb.New(0)})
	if err != nil {
		t.Fatal(err)
	}
	if f := resp.GetFailures(); len(f) != 1 || f[0].GetSandboxId() != "bad" || f[0].GetMessage() != "internal error" {
		t.Errorf("failures %v", f)
	}
	if h.gone("bad") || !h.gone("good") {
		t.Error("the wrong one is gone")
	}
}

// Activity is written in the background; a provider that panics there costs
// nothing but the write.
func TestActivitySurvivesAPanic(t *testing.T) {
	panicked := make(chan struct{}, 10)
	h := newHarness(t, func(c *Config) {
		c.Provider.(*scriptedProvider).before = func(_ context.Context, method, _ string) error {
			if method == "update" {
				panicked <- struct{}{}
				panic("update")
			}
			return nil
		}
	})
	h.createFor("a", time.Hour)
	h.age("a", 20*time.Minute)
	if err := h.stat("a"); err != nil {
		t.Fatal(err)
	}
	<-panicked
	if err := h.stat("a"); err != nil {
		t.Fatal(err)
	}
}

// A caller that gives up does not wait until deletions that hang make room.
func TestCleanupEndsWithItsCaller(t *testing.T) {
	g := newGate()
	h := newHarness(t, func(c *Config) {
		c.Provider.(*scriptedProvider).before = func(ctx context.Context, method, name string) error {
			if method != "delete" {
				return nil
			}
			return g.pass(ctx, name)
		}
	})
	for i := range maxCleanups + 2 {
		h.create(fmt.Sprintf("s-%d", i))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := h.server.CleanupSandboxes(ctx, &sandboxv1.CleanupSandboxesRequest{MaxIdle: durationpb.New(0)})
		done <- err
	}()
	for range maxCleanups {
		<-g.arrived
	}
	gaveUp := errors.New("the caller gave up")
	cancel(gaveUp)
	if err := <-done; !errors.Is(err, gaveUp) {
		t.Errorf("it ended with %v", err)
	}
}
