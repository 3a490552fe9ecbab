//go:build linux

package local

import (
	"errors"
	"os"
	"testing"
	"time"
)

// TestHalfWrittenTrees: what a killed server left goes, and not what another may
// be writing.
func TestHalfWrittenTrees(t *testing.T) {
	l := layout(t.TempDir())
	if err := l.make(); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-2 * partAge)
	for name, at := range map[string]time.Time{".part-old": long, ".part-new": time.Now(), "whole": long} {
		dir := l.path("rootfs", name)
		if err := errors.Join(os.MkdirAll(dir+"/etc", 0o755), os.Chtimes(dir, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := writeTree(l, map[string]entry{"/etc/x": {mode: 0o644, data: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(l.roots())
	if err != nil || len(left) != 3 || left[0].Name() != ".part-new" || !exists(l.path("rootfs", "whole")) || !exists(root) {
		t.Errorf("left: %v, %v", left, err)
	}
}
