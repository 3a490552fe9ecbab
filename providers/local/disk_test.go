//go:build linux

package local

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers/local/lock"
)

func TestDiskSize(t *testing.T) {
	for size, want := range map[int64]int64{
		minDisk: minDisk, minDisk + 1: 18 << 20, 2 << 30: 2 << 30, 3 << 30: 3 << 30, 5 << 30: 5 << 30, 10 << 30: 10 << 30,
		100 << 30: 104 << 30, maxDisk: maxDisk, maxDisk - 1: maxDisk,
	} {
		if got := diskSize(size); got != want {
			t.Errorf("%d: %d, want %d", size, got, want)
		}
	}
	sizes := map[int64]bool{}
	for size := int64(minDisk); size <= maxDisk; size += size/100 + 1 {
		got := diskSize(size)
		sizes[got] = true
		if got < size || got > size+size/8+diskUnit {
			t.Fatalf("%d was rounded to %d", size, got)
		}
	}
	if len(sizes) > 200 {
		t.Errorf("there are %d sizes", len(sizes))
	}
}

// TestTemplatesAreBounded: whatever sizes callers choose, few templates are kept,
// and the ones that are used stay.
func TestTemplatesAreBounded(t *testing.T) {
	l := layout(t.TempDir())
	if err := l.make(); err != nil {
		t.Fatal(err)
	}
	d := newDisks(l, lock.NewTable(l.locks()))
	if d.reason != "" {
		t.Skip(d.reason)
	}
	image := func(size int64) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "image")
		if err := d.image(t.Context(), size, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for i := range 3 * keptTemplates {
		image(int64(i+16) << 20)
		image(16 << 20) // in use all the time
		// Where times are coarse, the order must be clear all the same.
		past := time.Now().Add(time.Duration(i-1000) * time.Second)
		entries, err := os.ReadDir(l.disks())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if info, err := e.Info(); err == nil && time.Since(info.ModTime()) < 500*time.Second {
				_ = os.Chtimes(filepath.Join(l.disks(), e.Name()), past, past)
			}
		}
	}
	entries, err := os.ReadDir(l.disks())
	if err != nil || len(entries) > keptTemplates {
		t.Errorf("%d templates are kept, %v", len(entries), err)
	}
	used := filepath.Join(l.disks(), fmt.Sprintf("%s%dm", templatePrefix, 16))
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

// TestPlaceAgent: an executable of the right size and other content is replaced,
// and without gVisor nobody but root can read it.
func TestPlaceAgent(t *testing.T) {
	l := layout(t.TempDir())
	want := strings.Repeat("agent", 1000)
	config := Config{Agent: func(string) ([]byte, error) { return []byte(want), nil }}
	for _, c := range []struct {
		gvisor bool
		mode   os.FileMode
	}{{false, 0o711}, {true, 0o755}, {false, 0o711}, {true, 0o755}} {
		path, err := placeAgent(config, l, c.gvisor)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("it has other content: %v", err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != c.mode {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		if err := os.WriteFile(path, make([]byte, len(want)), 0); err != nil {
			t.Fatal(err)
		}
	}
}
