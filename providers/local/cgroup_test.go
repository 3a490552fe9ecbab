//go:build linux

package local_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// TestDelegatedCgroupIsBounded: a command can make cgroups of its own, few levels
// deep and not very many, and a sandbox that did so is deleted like any other.
func TestDelegatedCgroupIsBounded(t *testing.T) {
	config := testConfig(t)
	p := open(t, config)
	defer closeProvider(t, p)
	spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
	if _, err := p.Create(t.Context(), "maker", spec); err != nil {
		t.Fatal(err)
	}
	count := func(script string) int {
		t.Helper()
		out := providertest.Shell(t, p, "maker", script)
		n, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		return n
	}
	if n := count(`cd /.sandgate/cgroup; n=0; while [ $n -lt 60 ] && mkdir deep 2>/dev/null; do cd deep; n=$((n+1)); done; echo $n`); n < 1 || n > 3 {
		t.Errorf("a command made %d levels of cgroups, want 1 to 3", n)
	}
	if n := count(`cd /.sandgate/cgroup; mkdir $(seq -f wide%g 4000) 2>/dev/null; ls -d wide* | wc -l`); n < 1000 || n > 2048 {
		t.Errorf("a command made %d cgroups, want 1000 to 2048", n)
	}
	if err := p.Delete(t.Context(), "maker", providers.Condition{}); err != nil {
		t.Error(err)
	}
}

// TestDeepCgroupsAreRemoved: cgroups whose path is longer than a system call
// accepts are removed with their sandbox.
func TestDeepCgroupsAreRemoved(t *testing.T) {
	config := testConfig(t)
	p := open(t, config)
	defer closeProvider(t, p)
	spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
	if _, err := p.Create(t.Context(), "deep", spec); err != nil {
		t.Fatal(err)
	}
	dir := local.DelegatedGroup(p, "deep")
	for _, file := range []string{"cgroup.max.depth", "cgroup.max.descendants"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte("max"), 0); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 240)
	for range 60 {
		for _, sibling := range []string{name, "sibling"} {
			if err := unix.Mkdirat(fd, sibling, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		below, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
		fd = below
	}
	_ = unix.Close(fd)
	if err := p.Delete(t.Context(), "deep", providers.Condition{}); err != nil {
		t.Error(err)
	}
}

func closeProvider(t *testing.T, p *local.Provider) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
