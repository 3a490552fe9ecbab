package server

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// A provider that panics costs one sandbox's cleanup, and not the server.
func TestCleanupSurvivesAPanic(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Provider.(*memory).before = func(_ context.Context, method, name string) error {
			if method == "delete" && name == substrateName(defaultTenant, "bad") {
				panic("delete " + name)
			}
			return nil
		}
	})
	w.create("bad")
	w.create("good")
	resp, err := w.client.CleanupSandboxes(t.Context(), &sandboxv1.CleanupSandboxesRequest{MaxIdle: durationpb.New(0)})
	if err != nil {
		t.Fatal(err)
	}
	if f := resp.GetFailures(); len(f) != 1 || f[0].GetSandboxId() != "bad" || f[0].GetMessage() != "internal error" {
		t.Errorf("failures %v", f)
	}
	if w.gone("bad") || !w.gone("good") {
		t.Error("the wrong one is gone")
	}
}

// Activity is written in the background; a provider that panics there costs
// nothing but the write.
func TestActivitySurvivesAPanic(t *testing.T) {
	panicked := make(chan struct{}, 10)
	w := newWorld(t, func(c *Config) {
		c.Provider.(*memory).before = func(_ context.Context, method, _ string) error {
			if method == "update" {
				panicked <- struct{}{}
				panic("update")
			}
			return nil
		}
	})
	w.createFor("a", time.Hour)
	w.age("a", 20*time.Minute)
	if err := w.stat("a"); err != nil {
		t.Fatal(err)
	}
	<-panicked
	if err := w.stat("a"); err != nil {
		t.Fatal(err)
	}
}

// A caller that gives up does not wait until deletions that hang make room.
func TestCleanupEndsWithItsCaller(t *testing.T) {
	g := newGate()
	w := newWorld(t, func(c *Config) {
		c.Provider.(*memory).before = func(ctx context.Context, method, name string) error {
			if method != "delete" {
				return nil
			}
			return g.pass(ctx, name)
		}
	})
	for i := range maxCleanups + 2 {
		w.create(fmt.Sprintf("s-%d", i))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := w.server.CleanupSandboxes(ctx, &sandboxv1.CleanupSandboxesRequest{MaxIdle: durationpb.New(0)})
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
