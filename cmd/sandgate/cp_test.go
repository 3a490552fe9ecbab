package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/clients/go/fake"
)

func TestCopy(t *testing.T) {
	server := fake.Start(t, &fake.Server{})
	must(t, server, "create", "box")
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	has := func(path, want string) {
		t.Helper()
		if got, ok := server.File("box", path); !ok || got != want {
			t.Errorf("%s in the sandbox: %q, %t", path, got, ok)
		}
	}
	found := func(path, want string) {
		t.Helper()
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	one := write("tree/one", "1", 0o600)
	write("tree/sub/two", "2", 0o600)
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "tree/link")); err != nil {
		t.Fatal(err)
	}

	must(t, server, "cp", one, "box:/w/renamed")
	has("/w/renamed", "1")
	must(t, server, "cp", one, "box:/w/")
	has("/w/one", "1")
	must(t, server, "cp", one, "box:/w")
	if got := run(t.Context(), server, "piped", "cp", "-", "box:/w/piped"); got.code != 0 {
		t.Errorf("from standard input: %+v", got)
	}
	has("/w/piped", "piped")
	if got := run(t.Context(), server, "", "cp", filepath.Join(dir, "tree"), "box:/t"); got.code != failed || !strings.Contains(got.stderr, "-r") {
		t.Errorf("a directory without -r: %+v", got)
	}
	if got := run(t.Context(), server, "", "cp", "-r", filepath.Join(dir, "tree"), "box:/t"); got.code != 0 || !strings.Contains(got.stderr, "link is skipped: it is a symbolic link") {
		t.Errorf("a directory: %+v", got)
	}
	has("/t/one", "1")
	has("/t/sub/two", "2")

	if got := run(t.Context(), server, "", "cp", "box:/t", dir); got.code != failed || got.stderr != "sandgate: /t is a directory; copy it with -r\n" {
		t.Errorf("a directory without -r, out of the sandbox: %+v", got)
	}
	if got := must(t, server, "cp", "box:/w/piped", "-"); got != "piped" {
		t.Errorf("to standard output: %q", got)
	}
	must(t, server, "cp", "box:/w/piped", dir)
	found(filepath.Join(dir, "piped"), "piped")
	must(t, server, "cp", "-r", "box:/t", filepath.Join(dir, "copy"))
	found(filepath.Join(dir, "copy/one"), "1")
	found(filepath.Join(dir, "copy/sub/two"), "2")
	info, err := os.Stat(filepath.Join(dir, "copy/one"))
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}

	kept := write("kept", "old", 0o600)
	if got := run(t.Context(), server, "", "cp", "box:/none", kept); got.code != failed {
		t.Errorf("got %+v", got)
	}
	found(kept, "old")
	if parts, _ := filepath.Glob(filepath.Join(dir, ".*part")); len(parts) != 0 {
		t.Errorf("left behind: %v", parts)
	}
}

// The names in a sandbox are not trusted: no copy leaves its destination.
func TestCopyNeverLeavesItsDestination(t *testing.T) {
	server := fake.Start(t, &fake.Server{})
	must(t, server, "create", "box")
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "in/sub")); err != nil {
		t.Fatal(err)
	}
	server.SetFile("box", "/t/sub/evil", "x")
	destination := filepath.Join(dir, "in")
	got := run(t.Context(), server, "", "cp", "-r", "box:/t/.", destination)
	entries, err := os.ReadDir(outside)
	if err != nil || len(entries) != 0 {
		t.Errorf("written outside: %v, %v; %+v", entries, err, got)
	}
}

func TestParsePlace(t *testing.T) {
	tests := map[string]location{
		"box:/a":       {"box", "/a"},
		"box:":         {"box", ""},
		"./box:/a":     {"", "./box:/a"},
		"/a:b":         {"", "/a:b"},
		"-":            {"", "-"},
		`C:\file`:      {"", `C:\file`},
		"a.b_c-d:/x:y": {"a.b_c-d", "/x:y"},
		"box:/a\nb":    {"box", "/a\nb"},
	}
	for text, want := range tests {
		if got := parseLocation(text); got != want {
			t.Errorf("%s: %+v", text, got)
		}
	}
}
