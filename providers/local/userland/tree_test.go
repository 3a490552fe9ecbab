//go:build linux

package userland

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestHalfWrittenTreesAreRemoved: half written trees of killed servers are removed,
// except those that a server may still be writing.
func TestHalfWrittenTreesAreRemoved(t *testing.T) {
	trees := t.TempDir()
	long := time.Now().Add(-2 * partAge)
	for name, at := range map[string]time.Time{".part-old": long, ".part-new": time.Now(), "whole": long} {
		dir := filepath.Join(trees, name)
		if err := errors.Join(os.MkdirAll(dir+"/etc", 0o755), os.Chtimes(dir, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := writeTree(trees, map[string]entry{"/etc/x": {mode: 0o644, data: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	there := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	left, err := os.ReadDir(trees)
	if err != nil || len(left) != 3 || left[0].Name() != ".part-new" || !there(filepath.Join(trees, "whole")) || !there(root) {
		t.Errorf("left: %v, %v", left, err)
	}
}
