package agentbin

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

func TestReadFindsTheAgentInsideOrBeside(t *testing.T) {
	dir := t.TempDir()
	server := filepath.Join(dir, "sandgate")
	if err := os.WriteFile(server, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(t.TempDir(), "sandgate")
	if err := os.Symlink(server, linked); err != nil {
		t.Fatal(err)
	}
	inside := fstest.MapFS{"bin/sandgate-agent-linux-arm64": {Data: []byte("inside")}}
	at := func(path string) func() (string, error) { return func() (string, error) { return path, nil } }

	if _, err := read(inside, "amd64", "linux/amd64", at(server)); err == nil || !strings.Contains(err.Error(), "--agent") {
		t.Errorf("no agent at all: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, beside), []byte("beside"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, arch, server, executable, want string }{
		{"inside goes first", "arm64", "linux/arm64", server, "inside"},
		{"beside", "amd64", "linux/amd64", server, "beside"},
		{"beside what the link leads to", "amd64", "linux/amd64", linked, "beside"},
		{"of another architecture", "amd64", "linux/arm64", server, ""},
		{"of another system", "amd64", "darwin/amd64", server, ""},
	} {
		got, err := read(inside, c.arch, c.server, at(c.executable))
		if string(got) != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
	failed := errors.New("no executable")
	if _, err := read(inside, "amd64", "linux/amd64", func() (string, error) { return "", failed }); !errors.Is(err, failed) {
		t.Errorf("an unknown executable: %v", err)
	}
}
