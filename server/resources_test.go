package server

import (
	"context"
	"errors"
	"strings"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/policy"
)

// limiting is a provider that enforces every limit and has defaults.
type limiting struct{ *scriptedProvider }

var defaults = providers.Resources{MemoryBytes: 1 << 30, CPUMillis: 2000, MaxProcesses: 1024, DiskBytes: 4 << 30}

func (l limiting) Describe(ctx context.Context) (providers.Description, error) {
	d, err := l.scriptedProvider.Describe(ctx)
	d.Enforcement, d.DefaultResources = nil, defaults
	for _, name := range []string{"memory", "cpu", "processes", "disk", "network"} {
		d.Enforcement = append(d.Enforcement, providers.Enforcement{Name: name, Enforced: true})
	}
	return d, err
}

// No request gets more than its template has, unless the operator allows it.
func TestRequestsAreBoundedByTheirTemplate(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.Provider = limiting{c.Provider.(*scriptedProvider)}
		c.Templates = []policy.Template{{Name: "default"}, {Name: "large", MaxResources: providers.Resources{MemoryBytes: 8 << 30}}}
	})
	for _, c := range []struct {
		template string
		want     *sandboxv1.Resources
		refused  string
	}{
		{"default", nil, ""},
		{"default", &sandboxv1.Resources{MemoryBytes: 1 << 30, MaxProcesses: 10}, ""},
		{"default", &sandboxv1.Resources{MemoryBytes: 1<<30 + 1}, "memory_bytes"},
		{"default", &sandboxv1.Resources{CpuMillis: 2_000_000}, "cpu_millis"},
		{"default", &sandboxv1.Resources{MaxProcesses: 4_000_000}, "max_processes"},
		{"default", &sandboxv1.Resources{DiskBytes: 8 << 40}, "disk_bytes"},
		{"large", &sandboxv1.Resources{MemoryBytes: 8 << 30}, ""},
		{"large", &sandboxv1.Resources{MemoryBytes: 9 << 30}, "memory_bytes"},
		{"large", &sandboxv1.Resources{CpuMillis: 3000}, "cpu_millis"},
	} {
		req := &sandboxv1.CreateSandboxRequest{Template: c.template}
		if c.want != nil {
			req.Spec = &sandboxv1.SandboxSpec{Resources: c.want}
		}
		resp, err := h.client.CreateSandbox(t.Context(), req)
		if c.refused != "" {
			wantReason(t, err, "TEMPLATE_FORBIDS")
			if got := metadataOf(t, err)["field"]; got != "spec.resources."+c.refused {
				t.Errorf("%s, %v: refused for %q", c.template, c.want, got)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s, %v: %v", c.template, c.want, err)
			continue
		}
		got := resp.GetSandbox().GetSpec().GetResources()
		if got.GetMemoryBytes() == 0 || got.GetCpuMillis() == 0 || got.GetMaxProcesses() == 0 || got.GetDiskBytes() == 0 {
			t.Errorf("%s, %v: a limit is missing: %v", c.template, c.want, got)
		}
	}
}

func TestRequiredLimitsForbidATemplateWithoutThem(t *testing.T) {
	for name, c := range map[string]struct {
		template policy.Template
		provider func(*scriptedProvider) providers.Provider
		want     string
	}{
		"defaults": {policy.Template{Name: "x"}, func(m *scriptedProvider) providers.Provider { return limiting{m} }, ""},
		"none": {
			policy.Template{Name: "x", Resources: providers.Resources{DiskBytes: policy.Unlimited}},
			func(m *scriptedProvider) providers.Provider { return limiting{m} }, `template "x": no limit of disk_bytes`,
		},
		"not enforced": {policy.Template{Name: "x"}, func(m *scriptedProvider) providers.Provider { return m }, "does not enforce cpu"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(Config{Provider: c.provider(newScriptedProvider(t)), Templates: []policy.Template{c.template}, RequireLimits: true})
			if err == nil {
				defer func() { _ = s.Shutdown(t.Context()) }()
			}
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (!errors.Is(err, ErrLimits) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
