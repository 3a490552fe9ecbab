package ledger

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// writerDir is the environment variable that makes this test program a server which
// writes a document in this directory until it is killed.
const writerDir = "SANDGATE_TEST_LEDGER_WRITER"

// large is the size of the writer's document: the kill then falls into a write.
const large = 16 << 20

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerDir); dir != "" {
		os.Exit(writeForEver(dir))
	}
	os.Exit(m.Run())
}

func writeForEver(dir string) int {
	d, err := Open(dir)
	document := make([]byte, large)
	for err == nil {
		err = d.ChangeLedger(context.Background(), "events-00", func([]byte) ([]byte, error) {
			_, err := os.Stdout.WriteString("the write begins\n")
			return document, err
		})
	}
	return 1
}

func unfinished(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, ".*-*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// killWriters kills servers that write until one leaves an unfinished file.
func killWriters(t *testing.T, dir string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), writerDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, err = bufio.NewReader(out).ReadString('\n')
		killed := cmd.Process.Kill()
		_ = cmd.Wait()
		if err != nil || killed != nil {
			t.Fatal(err, killed)
		}
		if len(unfinished(t, dir)) > 0 {
			return
		}
	}
	t.Fatal("no kill fell into a write")
}

// What killed servers were writing is gone after the next start, and the document is
// whole or missing.
func TestKilledWriterLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	killWriters(t, dir)
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if left := unfinished(t, dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	err = d.ChangeLedger(t.Context(), "events-00", func(now []byte) ([]byte, error) {
		if len(now) > 0 && !bytes.Equal(now, make([]byte, large)) {
			t.Errorf("the document has %d bytes", len(now))
		}
		return nil, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A start deletes only files of its own kind, and none of a document that another
// server changes now.
func TestSweepLeavesOthers(t *testing.T) {
	dir := t.TempDir()
	other, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := []string{".events-00.json-1", ".events-known-00.json-22", ".quotas.json-3", ".quotas.json-x", ".quotas.json-", ".quotas-4", "quotas.json-5", ".-6", ".json-7"}
	for _, name := range files {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, ".quotas.json-8"), 0o700); err != nil {
		t.Fatal(err)
	}
	left := func() string {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		slices.Sort(names)
		return strings.Join(names, " ")
	}
	stopped := errors.New("stopped")
	err = other.ChangeLedger(t.Context(), "quotas", func([]byte) ([]byte, error) {
		if _, err := Open(dir); err != nil {
			t.Error(err)
		}
		if got := left(); got != ".-6 .json-7 .quotas-4 .quotas.json- .quotas.json-3 .quotas.json-8 .quotas.json-x locks quotas.json-5" {
			t.Errorf("during a change: %s", got)
		}
		return nil, stopped
	})
	if !errors.Is(err, stopped) {
		t.Fatal(err)
	}
	if _, err := Open(dir); err != nil {
		t.Fatal(err)
	}
	if got := left(); got != ".-6 .json-7 .quotas-4 .quotas.json- .quotas.json-8 .quotas.json-x locks quotas.json-5" {
		t.Errorf("after it: %s", got)
	}
}
