//go:build linux

package local

import (
	"errors"
	"os"
	"testing"

	"github.com/sandgate/sandgate/providers/internal/directory"
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
