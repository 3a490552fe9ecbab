package server

import (
	"context"
	"errors"
	"strings"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// limiting is a provider that enforces every limit and has defaults.
type limiting struct{ *memory }

var defaults = providers.Resources{MemoryBytes: 1 << 30, CPUMillis: 2000, MaxProcesses: 1024, DiskBytes: 4 << 30}

func (l limiting) Describe(ctx context.Context) (providers.Description, error) {
	d, err := l.memory.Describe(ctx)
	d.Enforcement, d.DefaultResources = nil, defaults
	for _, name := range []string{"memory", "cpu", "processes", "disk", "network"} {
		d.Enforcement = append(d.Enforcement, providers.Enforcement{Name: name, Enforced: true})
	}
	return d, err
}

func TestTemplateResources(t *testing.T) {
	type r = providers.Resources
	four := func(memory int64, cpu, processes int32, disk int64) r {
		return r{MemoryBytes: memory, CPUMillis: cpu, MaxProcesses: processes, DiskBytes: disk}
	}
	for name, c := range map[string]struct {
		own, most         r
		wantOwn, wantMost r
		unlimited         string
	}{
		"nothing stated": {wantOwn: defaults, wantMost: defaults},
		"one stated": {
			own:     r{MemoryBytes: 1 << 20},
			wantOwn: four(1<<20, 2000, 1024, 4<<30), wantMost: four(1<<20, 2000, 1024, 4<<30),
		},
		"more on request": {
			most:    r{MemoryBytes: 8 << 30, CPUMillis: Unlimited},
			wantOwn: defaults, wantMost: four(8<<30, 0, 1024, 4<<30),
		},
		"none": {
			own:     four(Unlimited, Unlimited, Unlimited, Unlimited),
			wantOwn: r{}, wantMost: r{}, unlimited: "memory_bytes cpu_millis max_processes disk_bytes",
		},
		"none, but bounded on request": {
			own: r{DiskBytes: Unlimited}, most: r{DiskBytes: 1 << 30},
			wantOwn: four(1<<30, 2000, 1024, 0), wantMost: four(1<<30, 2000, 1024, 1<<30), unlimited: "disk_bytes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl := Template{Name: "x", Resources: c.own, MaxResources: c.most}
			if err := tmpl.check(); err != nil {
				t.Fatal(err)
			}
			unlimited := strings.Join(tmpl.limit(defaults), " ")
			if tmpl.Resources != c.wantOwn || tmpl.MaxResources != c.wantMost || unlimited != c.unlimited {
				t.Errorf("resources %+v, at most %+v, unlimited %q", tmpl.Resources, tmpl.MaxResources, unlimited)
			}
		})
	}
	if err := (&Template{Name: "x", Resources: r{CPUMillis: -2}}).check(); err == nil || !strings.Contains(err.Error(), "resources.cpu_millis") {
		t.Errorf("-2: %v", err)
	}
}

// No request gets more than its template has, unless the operator has said so.
func TestRequestsAreBoundedByTheirTemplate(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Provider = limiting{c.Provider.(*memory)}
		c.Templates = []Template{{Name: "default"}, {Name: "large", MaxResources: providers.Resources{MemoryBytes: 8 << 30}}}
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
		resp, err := w.client.CreateSandbox(t.Context(), req)
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
		template Template
		provider func(*memory) providers.Provider
		want     string
	}{
		"defaults": {Template{Name: "x"}, func(m *memory) providers.Provider { return limiting{m} }, ""},
		"none": {
			Template{Name: "x", Resources: providers.Resources{DiskBytes: Unlimited}},
			func(m *memory) providers.Provider { return limiting{m} }, `template "x": no limit of disk_bytes`,
		},
		"not enforced": {Template{Name: "x"}, func(m *memory) providers.Provider { return m }, "does not enforce cpu"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(Config{Provider: c.provider(newMemory(t)), Templates: []Template{c.template}, RequireLimits: true})
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
