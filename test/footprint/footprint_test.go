//go:build linux

package footprint_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers/local/disk"
	"github.com/sandgate/sandgate/test/footprint"
)

// A loop device counts while its disk exists, and after the disk is deleted. That of
// another server does not.
func TestLoops(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	attach := func(dir string) (image string, loop *os.File) {
		image = filepath.Join(dir, "state/local/sandboxes/x/disk.ext4")
		if err := os.MkdirAll(filepath.Dir(image), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		loop, err := disk.AttachLoop(image)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = loop.Close() })
		return image, loop
	}
	dir := t.TempDir()
	s := footprint.New(dir, "/sandgate-no-such-cgroup")
	if got := s.Loops(); len(got) > 0 {
		t.Fatalf("before: %v", got)
	}
	attach(t.TempDir())
	image, loop := attach(dir)
	if got := s.Loops(); len(got) != 1 {
		t.Fatalf("while the disk exists: %v", got)
	}
	if got := s.Files(); got != 6 { // DIR, state, local, sandboxes, x and the disk
		t.Errorf("%d files", got)
	}
	if err := os.Remove(image); err != nil {
		t.Fatal(err)
	}
	if got := s.Loops(); len(got) != 1 {
		t.Fatalf("after the disk was deleted: %v", got)
	}
	if err := loop.Close(); err != nil {
		t.Fatal(err)
	}
	// The kernel detaches it in the background.
	for deadline := time.Now().Add(10 * time.Second); len(s.Loops()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after it was detached: %v", s.Loops())
		}
	}
	if errs := s.Left(); len(errs) > 0 {
		t.Errorf("left: %v", errs)
	}
}
