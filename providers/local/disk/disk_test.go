//go:build linux

package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers/internal/lock"
)

func TestDiskSize(t *testing.T) {
	for size, want := range map[int64]int64{
		MinSize: MinSize, MinSize + 1: 18 << 20, 2 << 30: 2 << 30, 3 << 30: 3 << 30, 5 << 30: 5 << 30, 10 << 30: 10 << 30,
		100 << 30: 104 << 30, MaxSize: MaxSize, MaxSize - 1: MaxSize,
	} {
		if got := RoundUp(size); got != want {
			t.Errorf("%d: %d, want %d", size, got, want)
		}
	}
	sizes := map[int64]bool{}
	for size := int64(MinSize); size <= MaxSize; size += size/100 + 1 {
		got := RoundUp(size)
		sizes[got] = true
		if got < size || got > size+size/8+unit {
			t.Fatalf("%d was rounded to %d", size, got)
		}
	}
	if len(sizes) > 200 {
		t.Errorf("there are %d sizes", len(sizes))
	}
}

// TestTemplatesAreBounded: whatever sizes callers choose, few templates are
// kept, and the ones in use stay.
func TestTemplatesAreBounded(t *testing.T) {
	dir := t.TempDir()
	m := NewMaker(dir, lock.NewTable(t.TempDir()))
	if m.reason != "" {
		t.Skip(m.reason)
	}
	image := func(size int64) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "image")
		if err := m.Make(t.Context(), size, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for i := range 3 * keptTemplates {
		image(int64(i+16) << 20)
		image(16 << 20) // in use all the time
		// Where times are coarse, the order must be clear all the same.
		past := time.Now().Add(time.Duration(i-1000) * time.Second)
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if info, err := e.Info(); err == nil && time.Since(info.ModTime()) < 500*time.Second {
				_ = os.Chtimes(filepath.Join(dir, e.Name()), past, past)
			}
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > keptTemplates {
		t.Errorf("%d templates are kept, %v", len(entries), err)
	}
	used := filepath.Join(dir, fmt.Sprintf("%s%dm", templatePrefix, 16))
	if !isExt4(used) {
		t.Error("the template in use was removed")
	}
	// After a power cut a template may be zeros.
	if err := os.WriteFile(used, make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if !isExt4(image(16 << 20)) {
		t.Error("a template of zeros was used")
	}
}
