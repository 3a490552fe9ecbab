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

// TestDelegatedCgroupIsBounded: below a sandbox's cgroup there can be few levels
// and not very many cgroups, and a sandbox that has them is deleted like any other.
func TestDelegatedCgroupIsBounded(t *testing.T) {
	config := testConfig(t)
	p := open(t, config)
	defer closeProvider(t, p)
	spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
	if _, err := providertest.Create(t.Context(), p, "maker", spec); err != nil {
		t.Fatal(err)
	}
	// Where the kernel has Landlock, no command can make one; elsewhere these bounds
	// hold it, and they hold root too.
	group := local.DelegatedGroup(p, "maker")
	levels := 0
	for dir := filepath.Join(group, "deep"); os.Mkdir(dir, 0o755) == nil && levels < 60; dir = filepath.Join(dir, "deep") {
		levels++
	}
	if levels < 1 || levels > 3 {
		t.Errorf("%d levels of cgroups can be made, want 1 to 3", levels)
	}
	wide := 0
	for os.Mkdir(filepath.Join(group, "wide"+strconv.Itoa(wide)), 0o755) == nil && wide < 4000 {
		wide++
	}
	if wide < 1000 || wide > 2048 {
		t.Errorf("%d cgroups can be made, want 1000 to 2048", wide)
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
	if _, err := providertest.Create(t.Context(), p, "deep", spec); err != nil {
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
