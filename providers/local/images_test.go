//go:build linux

package local

import (
	"errors"
	"os"
	"testing"
)

// TestImagesInUse: the images of sandboxes count, also of unclaimed ones and
// beside records that cannot be read.
func TestImagesInUse(t *testing.T) {
	p := &Provider{layout: layout(t.TempDir())}
	if err := p.layout.make(); err != nil {
		t.Fatal(err)
	}
	for b, image := range map[bundle]string{p.layout.sandbox("a"): "claimed", p.layout.pooled("pool.t.b"): "unclaimed"} {
		if err := errors.Join(os.Mkdir(string(b), 0o700), (&record{Phase: phaseActive, Image: image}).write(b)); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"corrupt": "{", "none": ""} {
		b := p.layout.sandbox(name)
		err := os.Mkdir(string(b), 0o700)
		if content != "" {
			err = errors.Join(err, os.WriteFile(b.record(), []byte(content), 0o600))
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
