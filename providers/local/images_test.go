//go:build linux

package local

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/internal/lock"
	"github.com/sandgate/sandgate/providers/local/disk"
	"github.com/sandgate/sandgate/providers/local/image"
)

// TestImagesInUse: the images of sandboxes count, also of unclaimed ones and
// beside records that cannot be read.
func TestImagesInUse(t *testing.T) {
	p := &Provider{layout: layout{directory.Layout(t.TempDir())}}
	if err := p.layout.make(); err != nil {
		t.Fatal(err)
	}
	for b, image := range map[directory.Dir]string{p.layout.Sandbox("a"): "claimed", p.layout.Pooled("pool.t.b"): "unclaimed"} {
		if err := errors.Join(os.Mkdir(string(b), 0o700), directory.Write(b, &record{Base: directory.Base{Phase: directory.Active}, Image: image})); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"corrupt": "{", "none": ""} {
		b := p.layout.Sandbox(name)
		err := os.Mkdir(string(b), 0o700)
		if content != "" {
			err = errors.Join(err, os.WriteFile(b.Record(), []byte(content), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	used, err := p.imagesInUse()
	if err != nil || len(used) != 2 || !used["claimed"] || !used["unclaimed"] {
		t.Errorf("in use: %v, %v", used, err)
	}
}

// On a full disk, images go that no sandbox uses, except those used just now.
func TestFullDiskRemovesUnusedImages(t *testing.T) {
	p := &Provider{layout: layout{directory.Layout(t.TempDir())}, log: slog.New(slog.DiscardHandler)}
	if err := p.layout.make(); err != nil {
		t.Fatal(err)
	}
	p.space = disk.NewSpace(string(p.layout.Layout), 1<<60, 0, func(func(string) bool) {})
	p.images = image.NewStore(p.layout.images(), lock.NewTable(p.layout.Locks()), p.log, image.Registries{}, nil, func() (map[string]bool, error) {
		return map[string]bool{"used": true}, nil
	})
	defer p.images.Close()
	for name, idle := range map[string]time.Duration{"used": time.Hour, "unused": time.Hour, "recent": time.Minute} {
		meta, at := filepath.Join(p.layout.images(), name, "meta.json"), time.Now().Add(-idle)
		if err := errors.Join(os.Mkdir(filepath.Dir(meta), 0o700), os.WriteFile(meta, []byte("{}"), 0o600), os.Chtimes(meta, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.makeRoom(t.Context()); !errors.Is(err, providers.ErrExhausted) {
		t.Errorf("on a disk that stays full: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(p.layout.images(), "[a-z]*"))
	if err != nil || len(left) != 2 || filepath.Base(left[0]) != "recent" || filepath.Base(left[1]) != "used" {
		t.Errorf("left: %v, %v", left, err)
	}
}
