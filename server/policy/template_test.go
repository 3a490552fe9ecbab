package policy

import (
	"strings"
	"testing"

	"github.com/sandgate/sandgate/providers"
)

func TestTemplateImages(t *testing.T) {
	for _, c := range []struct {
		name   string
		images []string
		image  string
		want   bool
	}{
		{"no list", nil, "any:1", true},
		{"an empty list", []string{}, "any:1", false},
		{"the template's own", []string{}, "own:1", true},
		{"listed", []string{"a:1", "b:1"}, "b:1", true},
		{"not listed", []string{"a:1"}, "a:2", false},
		{"any rest", []string{"oci:/images/*"}, "oci:/images/a/b:v1", true},
		{"a rest that climbs", []string{"oci:/images/*"}, "oci:/images/../etc", false},
		{"a rest that climbs at its end", []string{"oci:/images/*"}, "oci:/images/..", false},
		{"a rest that climbs before its tag", []string{"oci:/images/*"}, "oci:/images/..:v1", false},
		{"dots in a name", []string{"r.example/*"}, "r.example/a..b:1", true},
	} {
		if got := (&Template{Image: "own:1", Images: c.images}).allowsImage(c.image); got != c.want {
			t.Errorf("%s: %q is allowed: %v", c.name, c.image, got)
		}
	}
}

var defaults = providers.Resources{MemoryBytes: 1 << 30, CPUMillis: 2000, MaxProcesses: 1024, DiskBytes: 4 << 30}

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
