//go:build linux

package local_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/policy"
)

// A sandbox of a template that states nothing has every limit, where the kernel
// keeps it.
func TestTemplateThatStatesNothing(t *testing.T) {
	config := testConfig(t)
	p := open(t, config)
	t.Cleanup(func() { _ = p.Close() })
	s, err := server.New(server.Config{
		Provider: p, Templates: []policy.Template{{Name: "default"}}, RequireLimits: true,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := s.DeleteSandbox(ctx, &sandboxv1.DeleteSandboxRequest{SandboxId: "bare"}); err != nil {
			t.Error(err)
		}
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	if _, err := s.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "bare"}); err != nil {
		t.Fatal(err)
	}
	page, err := p.List(t.Context(), providers.Query{Limit: 1})
	if err != nil || len(page.Sandboxes) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	want, name := local.DefaultResources(), page.Sandboxes[0].Name
	if got := page.Sandboxes[0].Spec.Resources; got != want {
		t.Errorf("resources %+v, want %+v", got, want)
	}
	for controller, c := range map[string]struct {
		files []string // where cgroup v1 or v2 has the limit
		limit int64
	}{
		"memory":    {[]string{"memory/memory.limit_in_bytes", "memory.max"}, want.MemoryBytes},
		"processes": {[]string{"pids/pids.max", "pids.max"}, int64(want.MaxProcesses)},
		"cpu":       {[]string{"cpu/cpu.cfs_quota_us", "cpu.max"}, int64(want.CPUMillis) * 100},
	} {
		got := ""
		for _, file := range c.files {
			dir, file := filepath.Split(file)
			found, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", dir, config.CgroupParent, "*"+name, file))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range found {
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				got, _, _ = strings.Cut(strings.TrimSpace(string(data)), " ")
			}
		}
		if n, err := strconv.ParseInt(got, 10, 64); err != nil || n <= 0 || n > c.limit {
			t.Errorf("%s: %q, %v; at most %d is allowed", controller, got, err, c.limit)
		}
	}
	got := strings.TrimSpace(providertest.Shell(t, p, name, "df -P -B1 /workspace | awk 'NR==2 {print $2}'"))
	if n, err := strconv.ParseInt(got, 10, 64); err != nil || n <= 0 || n > want.DiskBytes {
		t.Errorf("disk: %q, %v; at most %d is allowed", got, err, want.DiskBytes)
	}
}
