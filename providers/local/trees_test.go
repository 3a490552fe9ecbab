//go:build linux

package local

import (
	"errors"
	"os"
	"testing"

	"github.com/sandgate/sandgate/providers/internal/directory"
)

// TestUnusedTreesAreCollected: trees that a server holds or that a sandbox's record
// names stay, also an unclaimed one's, and others go.
func TestUnusedTreesAreCollected(t *testing.T) {
	p, trees := treesOf(t, "held", "claimed", "unclaimed", "unused", ".part-1", removedPrefix+"1")
	h, err := hold(func() ([]string, error) { return []string{trees("held")}, nil })
	if err != nil {
		t.Fatal(err)
	}
	defer closeHeld(t, h)
	addRecord(t, p.layout.Sandbox("a"), &record{Tree: "claimed"})
	addRecord(t, p.layout.Pooled("pool.t.b"), &record{Tree: "unclaimed"})
	p.collect(t.Context(), p.layout.roots(), p.treeInUse)
	for name, want := range map[string]bool{
		"held": true, "claimed": true, "unclaimed": true, "unused": false,
		".part-1": true, removedPrefix + "1": false, removedPrefix + "unused": false,
	} {
		if got := exists(trees(name)); got != want {
			t.Errorf("%s exists: %v, want %v", name, got, want)
		}
	}
}

// TestSandboxOfUnknownTreeKeepsAll: no tree is removed while a record does not name its
// tree, cannot be read or is not there.
func TestSandboxOfUnknownTreeKeepsAll(t *testing.T) {
	for name, content := range map[string]string{"of an earlier version": "{}", "corrupt": "{", "none": ""} {
		t.Run(name, func(t *testing.T) {
			p, trees := treesOf(t, "any")
			b := p.layout.Sandbox("a")
			err := os.Mkdir(string(b), 0o700)
			if content != "" {
				err = errors.Join(err, os.WriteFile(b.Record(), []byte(content), 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
			p.collect(t.Context(), p.layout.roots(), p.treeInUse)
			if !exists(trees("any")) {
				t.Error("it is removed")
			}
			if err := os.RemoveAll(string(b)); err != nil {
				t.Fatal(err)
			}
			p.collect(t.Context(), p.layout.roots(), p.treeInUse)
			if exists(trees("any")) {
				t.Error("it is still there without the sandbox")
			}
		})
	}
}

func addRecord(t *testing.T, b directory.Dir, rec *record) {
	t.Helper()
	if err := errors.Join(os.Mkdir(string(b), 0o700), directory.Write(b, rec)); err != nil {
		t.Fatal(err)
	}
}
