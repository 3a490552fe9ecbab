//go:build linux

package local_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers/local"
)

// TestProbeReportsWhatPreventsCreations: the probe reports what prevents every creation, until it is
// repaired.
func TestProbeReportsWhatPreventsCreations(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	p := open(t, config)
	t.Cleanup(func() { _ = p.Close() })
	fine := func() {
		t.Helper()
		got, err := p.Probe(t.Context())
		if err != nil || got.FreeBytes <= 0 {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	fine()

	full := t.TempDir()
	if err := unix.Mount("tmpfs", full, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(full, 0) })
	local.MoveState(p, full)
	if got, err := p.Probe(t.Context()); err != nil || got.FreeBytes > 64<<10 {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(full, "big"), bytes.Repeat([]byte{1}, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot be written") || got.FreeBytes != 0 {
		t.Errorf("on a full disk: %+v, %v", got, err)
	}
	if names, _ := filepath.Glob(filepath.Join(full, ".probe*")); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
	if err := os.Remove(filepath.Join(full, "big")); err != nil {
		t.Fatal(err)
	}
	fine()

	local.MoveRuntime(p, filepath.Join(full, "runc"))
	if _, err := p.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "OCI runtime") {
		t.Errorf("without the runtime: %v", err)
	}
}
