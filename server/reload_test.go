package server

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/server/quota"
)

// A stream goes on through reloads, of which a wrong one changes nothing.
func TestReloadKeepsStreams(t *testing.T) {
	h := newHarness(t, nil)
	entered, release := make(chan struct{}), make(chan struct{})
	h.provider.script.execute = func(_ *scriptedAgent, _ *sandboxv1.ExecuteRequest, out emitter) error {
		close(entered)
		<-release
		return errors.Join(out.started(0), out.exited(0, 0))
	}
	h.create("a")
	ended := make(chan error, 1)
	go func() {
		stream, err := h.client.Execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a", Command: &sandboxv1.ExecuteRequest_Shell{Shell: "true"}})
		if err == nil {
			_, err = collect(t, stream)
		}
		ended <- err
	}()
	<-entered
	template := func(name string) policy.Template {
		one := policy.DefaultTemplate()
		one.Name = name
		return one
	}
	if err := h.server.Reload(t.Context(), Config{
		Templates: []policy.Template{template("small")}, Limits: Limits{MaxTTL: time.Hour, DefaultTTL: time.Minute, MaxForwards: 1},
		Quotas: quota.Config{MaxSandboxes: 1},
	}, nil); err != nil {
		t.Fatal(err)
	}
	if n := h.server.rules().limits.MaxForwards; n == 1 {
		t.Error("max_forwards changed")
	}
	for name, c := range map[string]struct {
		req    *sandboxv1.CreateSandboxRequest
		reason string
	}{
		"a template that is gone": {&sandboxv1.CreateSandboxRequest{SandboxId: "b"}, "TEMPLATE_NOT_FOUND"},
		"the new quota":           {&sandboxv1.CreateSandboxRequest{SandboxId: "b", Template: "small"}, "QUOTA_EXCEEDED"},
	} {
		_, err := h.client.CreateSandbox(t.Context(), c.req)
		if err == nil {
			t.Fatalf("%s: no error", name)
		}
		wantReason(t, err, c.reason)
	}
	for name, bad := range map[string]Config{
		"template": {Templates: []policy.Template{template("A")}},
		"pool":     {Templates: []policy.Template{{Name: "default", Pool: 1}}},
		"limit":    {Limits: Limits{MaxTTL: -1}},
		"quota":    {Quotas: quota.Config{MaxSandboxes: -1}},
	} {
		before := h.server.rules()
		if err := h.server.Reload(context.Background(), bad, func() { t.Error("called") }); err == nil || h.server.rules() != before {
			t.Errorf("%s: %v", name, err)
		}
	}
	close(release)
	if err := <-ended; err != nil {
		t.Errorf("the stream: %v", err)
	}
}

// keeper is a provider whose pools cannot be changed if changed returns an error.
type keeper struct {
	pooled
	changed func(ctx context.Context, pools []providers.Pool) error
}

func (k *keeper) KeepPools(ctx context.Context, pools []providers.Pool) error {
	return k.changed(ctx, pools)
}

// A reload changes pools only if they differ, and brings the former ones back if the
// new ones cannot be kept, even in no time. Rules that belong together apply at once.
func TestReloadChangesPoolsOnlyIfTheyDiffer(t *testing.T) {
	var targets []int
	k := &keeper{changed: func(_ context.Context, pools []providers.Pool) error {
		targets = append(targets, pools[0].Target)
		return nil
	}}
	config := func(pool int, quotas quota.Config) Config {
		one := policy.DefaultTemplate()
		one.Pool = pool
		return Config{Templates: []policy.Template{one}, Quotas: quotas}
	}
	h := newHarness(t, func(c *Config) {
		k.pooled = pooled{c.Provider.(*scriptedProvider)}
		c.Provider, c.Templates = k, config(1, quota.Config{}).Templates
	})
	before, called := h.server.rules(), 0
	inForce := func() {
		if called++; h.server.rules() == before {
			t.Error("called under the former rules")
		}
	}
	want := func(what string, all ...int) {
		t.Helper()
		if !slices.Equal(targets, all) {
			t.Errorf("%s: pools of %v, want %v", what, targets, all)
		}
	}
	if err := h.server.Reload(t.Context(), config(1, quota.Config{MaxSandboxes: 1}), inForce); err != nil || called != 1 {
		t.Errorf("%v, and called %d times", err, called)
	}
	want("a new quota", 1)
	ctx, cancel := context.WithCancel(t.Context())
	works := k.changed
	k.changed = func(ctx context.Context, pools []providers.Pool) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		cancel()
		return errors.Join(works(ctx, pools), ctx.Err())
	}
	if err := h.server.Reload(ctx, config(2, quota.Config{}), inForce); !errors.Is(err, context.Canceled) || called != 1 {
		t.Errorf("%v, and called %d times", err, called)
	}
	want("new pools in no time", 1, 2, 1)
	k.changed = works
	if err := h.server.Reload(t.Context(), config(3, quota.Config{}), inForce); err != nil || called != 2 {
		t.Errorf("%v, and called %d times", err, called)
	}
	want("new pools", 1, 2, 1, 3)
}
