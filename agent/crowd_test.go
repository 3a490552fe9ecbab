package agent

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCrowd(t *testing.T) {
	dir := t.TempDir() + "/"
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("pids.max", "100\n")
	write("pids.events", "max 7\n")
	c := openCrowd([]string{dir + "missing/", dir})
	defer c.close()
	before, ok := c.refused()
	if before != 7 || !ok {
		t.Fatalf("refused: %d, %v", before, ok)
	}
	if got := c.remark(before); got != "" {
		t.Errorf("nothing was refused since: %q", got)
	}
	write("pids.events", "max 12\n")
	const want = "meanwhile the sandbox was at its limit of 100 processes; refused starts: 5"
	if got := c.remark(before); got != want {
		t.Errorf("got %q", got)
	}
}

// A machine that shows no counter says nothing.
func TestCrowdUnknown(t *testing.T) {
	c := openCrowd([]string{t.TempDir() + "/"})
	defer c.close()
	if _, ok := c.refused(); ok || c.remark(0) != "" {
		t.Error("a count out of nothing")
	}
}
