package e2e

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sum returns a file's SHA-256.
func sum(t *testing.T, path string) []byte {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		t.Fatal(err)
	}
	return h.Sum(nil)
}

// large creates a file of a size, the same in each run.
func large(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "large")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(file, rand.NewChaCha8([32]byte{7}), size); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCopyLargeFile(t *testing.T) {
	need(t)
	id := shared.create(t)
	there, back := large(t, 100<<20), filepath.Join(t.TempDir(), "back")
	shared.must(t, "cp", there, id+":/workspace/new/file")
	shared.must(t, "cp", id+":/workspace/new/file", back)
	if !bytes.Equal(sum(t, there), sum(t, back)) {
		t.Error("the file came back changed")
	}
	if got := shared.must(t, "exec", id, "--", "stat", "-c", "%s", "/workspace/new/file"); got != "104857600" {
		t.Errorf("size in the sandbox: %s", got)
	}
}

func TestCopyTree(t *testing.T) {
	need(t)
	id := shared.create(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"src/a": "A", "src/sub/b c": "B", "src/sub/deep/empty": ""} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	shared.must(t, "cp", "-r", filepath.Join(dir, "src"), id+":/workspace")
	if got := shared.must(t, "exec", id, "-c", "cd /workspace && find src -type f | sort && cat src/a 'src/sub/b c'"); got != "src/a\nsrc/sub/b c\nsrc/sub/deep/empty\nAB" {
		t.Errorf("got %q", got)
	}
	shared.must(t, "cp", "-r", id+":/workspace/src", filepath.Join(dir, "copy"))
	got, err := os.ReadFile(filepath.Join(dir, "copy/sub/b c"))
	if err != nil || string(got) != "B" {
		t.Errorf("got %q, %v", got, err)
	}
	info, err := os.Stat(filepath.Join(dir, "copy/a"))
	if err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("mode %v, %v", info, err)
	}
}

func TestCopyThroughPipes(t *testing.T) {
	need(t)
	id := shared.create(t)
	if got := shared.run("piped", "cp", "-", id+":/workspace/p"); got.code != 0 {
		t.Errorf("in: %+v", got)
	}
	if got := shared.run("", "cp", id+":/workspace/p", "-"); got != (ran{0, "piped", ""}) {
		t.Errorf("out: %+v", got)
	}
}

func TestCopyErrors(t *testing.T) {
	need(t)
	id := shared.create(t)
	for source, reason := range map[string]string{
		id + ":/none":      "FILE_NOT_FOUND",
		id + ":/workspace": "FILE_IS_DIRECTORY",
		"none:/x":          "SANDBOX_NOT_FOUND",
	} {
		if got := shared.run("", "cp", source, "-"); got.code != 125 || !strings.Contains(got.stderr, reason) {
			t.Errorf("%s: %+v", source, got)
		}
	}
	if got := shared.run("x", "cp", "-", id+":/usr/x"); got.code != 125 || !strings.Contains(got.stderr, "FILE_") {
		t.Errorf("read-only system: %+v", got)
	}
}
