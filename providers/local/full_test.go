//go:build linux

package local_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// smallDisk is a configuration whose state directory is a file system of 120 MB.
func smallDisk(t *testing.T) local.Config {
	t.Helper()
	config := testConfig(t)
	image, dir := filepath.Join(t.TempDir(), "small.ext4"), filepath.Join(t.TempDir(), "small")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(image, nil, 0o600), os.Truncate(image, 120<<20)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	config.StateDir = filepath.Join(dir, "state")
	return config
}

// TestFullHostDiskRefusesCreationsAndRecovers: when a sandbox fills the host's disk, no other is created, with
// an error with the reason; a server starts; and deletions free the space.
func TestFullHostDiskRefusesCreationsAndRecovers(t *testing.T) {
	config := smallDisk(t)
	p := open(t, config)
	spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
	spec.Resources.DiskBytes = 256 << 20
	for _, name := range []string{"filler", "neighbour"} {
		if _, err := providertest.Create(t.Context(), p, name, spec); err != nil {
			t.Fatal(err)
		}
	}
	providertest.Shell(t, p, "filler", "dd if=/dev/zero of=/workspace/much bs=1M count=250; sync; true")
	create := func() {
		t.Helper()
		_, err := providertest.Create(t.Context(), p, "more", spec)
		if !errors.Is(err, providers.ErrExhausted) || !strings.Contains(err.Error(), "no sandbox is created with less than") {
			t.Errorf("create on a full disk: %v", err)
		}
	}
	create()
	closeProvider(t, p)
	p = open(t, config)
	defer closeProvider(t, p)
	if _, err := p.Describe(t.Context()); err != nil {
		t.Errorf("a server on a full disk: %v", err)
	}
	create()
	for _, name := range []string{"neighbour", "filler"} {
		if err := p.Delete(t.Context(), name, providers.Condition{}); err != nil {
			t.Errorf("delete %s on a full disk: %v", name, err)
		}
	}
	if _, err := providertest.Create(t.Context(), p, "more", spec); err != nil {
		t.Errorf("create after the deletions: %v", err)
	}
	if err := p.Delete(t.Context(), "more", providers.Condition{}); err != nil {
		t.Error(err)
	}
}

// TestDiskSpaceIsNotOvercommitted: without overcommitment no sandbox is created whose disk could
// lack space because of the others.
func TestDiskSpaceIsNotOvercommitted(t *testing.T) {
	config := smallDisk(t)
	config.DiskOvercommit = 1
	p := open(t, config)
	defer closeProvider(t, p)
	spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
	spec.Resources.DiskBytes = 32 << 20
	var made []string
	for _, name := range []string{"a", "b", "c", "d"} {
		_, err := providertest.Create(t.Context(), p, name, spec)
		if err == nil {
			made = append(made, name)
			continue
		}
		if !errors.Is(err, providers.ErrExhausted) || !strings.Contains(err.Error(), "MiB together") {
			t.Errorf("create %s: %v", name, err)
		}
	}
	if len(made) == 0 || len(made) == 4 {
		t.Errorf("%d sandboxes were created, want some, but not 4", len(made))
	}
	for _, name := range made {
		providertest.Shell(t, p, name, "dd if=/dev/urandom of=/workspace/much bs=1M 2>/dev/null; sync; cksum /workspace/much >/tmp/sum")
	}
	for _, name := range made {
		if got := providertest.Shell(t, p, name, "cksum /workspace/much | cmp - /tmp/sum && echo whole"); got != "whole\n" {
			t.Errorf("%s lost data: %q", name, got)
		}
		if err := p.Delete(t.Context(), name, providers.Condition{}); err != nil {
			t.Error(err)
		}
	}
}

// TestAllSandboxesTogetherHaveLimits: all sandboxes together have limits, which hold again after their
// cgroup was removed.
func TestAllSandboxesTogetherHaveLimits(t *testing.T) {
	config := testConfig(t)
	config.MaxMemory, config.MaxProcesses = 3<<30, 4321
	p := open(t, config)
	defer closeProvider(t, p)
	described, err := p.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, e := range described.Enforcement {
		found = found || e.Name == "total" && e.Enforced && strings.Contains(e.Detail, "3.0 GiB") && strings.Contains(e.Detail, "4321")
	}
	if !found {
		t.Errorf("the description lacks it: %+v", described.Enforcement)
	}
	spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
	spec.Resources.MemoryBytes, spec.Resources.MaxProcesses = 1<<50, 4_000_000
	for range 2 {
		if _, err := providertest.Create(t.Context(), p, "greedy", spec); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"pids" + config.CgroupParent + "/pids.max", "memory" + config.CgroupParent + "/memory.limit_in_bytes"} {
			data, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", file))
			if os.IsNotExist(err) {
				data, err = os.ReadFile(filepath.Join("/sys/fs/cgroup", config.CgroupParent, strings.Replace(filepath.Base(file), "limit_in_bytes", "max", 1)))
			}
			if got := strings.TrimSpace(string(data)); err != nil || got != "4321" && got != "3221225472" {
				t.Errorf("%s: %q, %v", file, got, err)
			}
		}
		if err := p.Delete(t.Context(), "greedy", providers.Condition{}); err != nil {
			t.Error(err)
		}
		groups, _ := filepath.Glob("/sys/fs/cgroup/*" + config.CgroupParent)
		for _, g := range groups {
			_ = os.Remove(g)
		}
	}
}
