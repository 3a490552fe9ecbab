package tree

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPidsEvents(t *testing.T) {
	dir := t.TempDir() + "/"
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("pids.max", "100\n")
	write("pids.events", "max 7\n")
	c := openPidsEvents([]string{dir + "missing/", dir})
	defer c.Close()
	before, ok := c.Refused()
	if before != 7 || !ok {
		t.Fatalf("refused: %d, %v", before, ok)
	}
	if got := c.Message(before); got != "" {
		t.Errorf("the kernel refused nothing since: %q", got)
	}
	write("pids.events", "max 12\n")
	const want = "meanwhile the sandbox was at its limit of 100 processes; refused starts: 5"
	if got := c.Message(before); got != want {
		t.Errorf("got %q", got)
	}
}

// Without a counter there is no message.
func TestNoPidsMessageWithoutACounter(t *testing.T) {
	c := openPidsEvents([]string{t.TempDir() + "/"})
	defer c.Close()
	if _, ok := c.Refused(); ok || c.Message(0) != "" {
		t.Error("a count without a counter")
	}
}
