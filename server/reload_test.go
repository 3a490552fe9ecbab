package server

import (
	"context"
	"errors"
	"testing"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
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
	}); err != nil {
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
		if err := h.server.Reload(context.Background(), bad); err == nil || h.server.rules() != before {
			t.Errorf("%s: %v", name, err)
		}
	}
	close(release)
	if err := <-ended; err != nil {
		t.Errorf("the stream: %v", err)
	}
}
