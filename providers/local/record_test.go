package local

import (
	"os"
	"testing"
)

// Sandboxes of an older server are removed, not adopted.
func TestRecordOfOlderServer(t *testing.T) {
	b := bundle(t.TempDir())
	for content, want := range map[string]phase{
		`{"phase": "active", "transport": "exec", "image": "i"}`: phaseActive,
		`{"phase": "active", "way": "exec", "image": "i"}`:       phaseCreating,
		`{"phase": "unclaimed", "way": "exec", "image": "i"}`:    phaseCreating,
		`{"phase": "deleting", "way": "exec", "image": "i"}`:     phaseDeleting,
	} {
		if err := os.WriteFile(b.record(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if rec, err := readRecord(b); err != nil || rec.Phase != want || rec.Image != "i" {
			t.Errorf("%s: %+v, %v", content, rec, err)
		}
	}
}
