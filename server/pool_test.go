package server

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/fake"
	"github.com/sandgate/sandgate/server/policy"
)

func fakeProvider(t *testing.T) *fake.Provider {
	t.Helper()
	dir, err := os.MkdirTemp("", "sg")
	if err != nil {
		t.Fatal(err)
	}
	m := fake.NewMachine(dir, fake.Config{})
	p := m.Open()
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), m.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestRequestForATemplateWithAPoolGetsAMember: a request that names a template with a pool, and nothing else, gets
// one of its sandboxes; one that asks for more does not.
func TestRequestForATemplateWithAPoolGetsAMember(t *testing.T) {
	p := fakeProvider(t)
	h := newHarness(t, func(c *Config) {
		c.Provider = p
		c.Templates = []policy.Template{
			{Name: "default"},
			{Name: "ready", Env: map[string]string{"A": "1"}, Resources: providers.Resources{CPUMillis: 500}, Pool: 2},
		}
	})
	want := func(available, active int32) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			s, err := h.client.GetPoolStatus(ctx, &sandboxv1.GetPoolStatusRequest{Template: "ready"})
			if err != nil {
				t.Fatal(err)
			}
			if s.GetAvailable() == available && s.GetActive() == active && s.GetTotal() == available+active && s.GetTarget() == 2 {
				return
			}
			<-tick.C
		}
	}
	create := func(id, template string, spec *sandboxv1.SandboxSpec) *sandboxv1.Sandbox {
		t.Helper()
		r, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: id, Template: template, Spec: spec, Labels: map[string]string{"of": id}})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetSandbox()
	}
	want(2, 0)
	if !create("a", "ready", nil).GetFromPool() {
		t.Error("a plain request was not given a started sandbox")
	}
	want(2, 1)
	if create("b", "ready", &sandboxv1.SandboxSpec{Env: map[string]string{"B": "2"}}).GetFromPool() {
		t.Error("a started sandbox was given to a request with an environment of its own")
	}
	if create("c", "default", nil).GetFromPool() {
		t.Error("a started sandbox of another template was given")
	}
	got, err := h.client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: "a"})
	if err != nil || !got.GetSandbox().GetFromPool() || got.GetSandbox().GetLabels()["of"] != "a" {
		t.Errorf("get: %v, %v", got, err)
	}
	_, err = h.client.GetPoolStatus(t.Context(), &sandboxv1.GetPoolStatusRequest{})
	wantReason(t, err, "TEMPLATE_NOT_FOUND")
	list, err := h.client.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{})
	if err != nil || len(list.GetSandboxes()) != 3 {
		t.Errorf("list: %v, %v", list, err)
	}
	want(2, 1)
}

func TestPoolNeedsAProviderThatKeepsOne(t *testing.T) {
	for name, c := range map[string]struct {
		provider providers.Provider
		template policy.Template
		want     string
	}{
		"negative":       {fakeProvider(t), policy.Template{Name: "a", Pool: -1}, "pool"},
		"too many":       {fakeProvider(t), policy.Template{Name: "a", Pool: 1001}, "1000"},
		"no such power":  {newScriptedProvider(t), policy.Template{Name: "a", Pool: 1}, "keeps none"},
		"unknown option": {fakeProvider(t), policy.Template{Name: "a", Pool: 1, ProviderOptions: []byte(`{"x": 1}`)}, `"a"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(Config{Provider: c.provider, Templates: []policy.Template{c.template}})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}
