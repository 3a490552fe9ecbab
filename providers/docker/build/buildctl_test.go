package build

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// What buildctl gets is what was hashed: a context that is taken from the unpacked one has
// the same hash.
func TestUnpackedContextIsTheSame(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{
		"Dockerfile": "FROM scratch\n", ".dockerignore": "ignored\n", "ignored": "", "a/b/file": "text", "empty/": "",
		"link": "-> a/b", "outside": "-> /etc", "a/closed/file": "text",
	})
	for name, mode := range map[string]fs.FileMode{"a/b/file": 0o751, "a/closed/file": 0o4400, "a/closed": 0o500} {
		bits := mode.Perm()
		if mode&0o4000 != 0 {
			bits |= fs.ModeSetuid
		}
		if err := os.Chmod(filepath.Join(dir, name), bits); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Unix(1_000_000_000, 0)
	for _, name := range []string{"a/b/file", "a/b", "empty"} {
		if err := os.Chtimes(filepath.Join(dir, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	s, err := take(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.close() }()
	parent := filepath.Join(t.TempDir(), "parent")
	if err := os.Mkdir(parent, 0o700); err != nil {
		t.Fatal(err)
	}
	unpacked := filepath.Join(parent, "context")
	if err := s.unpack(unpacked); err != nil {
		t.Fatal(err)
	}
	if got := hashOf(t, unpacked, ""); got != s.hash {
		t.Errorf("the hash is %s, not %s", got, s.hash)
	}
	if _, err := os.Lstat(filepath.Join(unpacked, "ignored")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an ignored file: %v", err)
	}
	for _, name := range []string{"a/b/file", "a/b", "empty"} {
		if info, err := os.Stat(filepath.Join(unpacked, name)); err != nil || !info.ModTime().Equal(old) {
			t.Errorf("%s: %v, %v", name, info.ModTime(), err)
		}
	}
	if err := remove(parent); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(parent); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
	if _, err := os.Stat("/etc/passwd"); err != nil {
		t.Errorf("what a link leads to: %v", err)
	}
}

func TestArgumentsOfBuildctl(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	k := &kit{
		BuildKitOptions: BuildKitOptions{
			Options: Options{Target: "t", Args: map[string]string{"A": "1, 2", "B": "x=y"}, Network: "host", NoCache: true},
			Address: "tcp://builder:1234", Platform: "linux/arm64",
		},
		pins: map[string]string{"debian": digest, "registry.example:5000/a/b:1": digest},
	}
	want := []string{
		"--addr", "tcp://builder:1234", "build", "--progress", "plain", "--frontend", "dockerfile.v0",
		"--local", "context=" + filepath.Join("dir", "context"), "--local", "dockerfile=" + filepath.Join("dir", "file"),
		"--metadata-file", filepath.Join("dir", "metadata.json"), "--output", "type=x",
		"--opt", "platform=linux/arm64", "--opt", "target=t", "--opt", "build-arg:A=1, 2", "--opt", "build-arg:B=x=y",
		"--source-policy-file", filepath.Join("dir", "policy.json"),
		"--opt", "force-network-mode=host", "--allow", "network.host", "--no-cache",
	}
	got, err := k.args("dir", "type=x")
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q\ninstead of\n%q, %v", got, want, err)
	}
	policy, err := k.policy()
	const debian, other = "docker-image://docker.io/library/debian:latest", "docker-image://registry.example:5000/a/b:1"
	if want := `{"rules":[` +
		`{"action":"CONVERT","selector":{"identifier":"` + debian + `"},"updates":{"identifier":"` + debian + "@" + digest + `"}},` +
		`{"action":"CONVERT","selector":{"identifier":"` + other + `"},"updates":{"identifier":"` + other + "@" + digest + `"}}]}`; err != nil || string(policy) != want {
		t.Errorf("%s\ninstead of\n%s, %v", policy, want, err)
	}
	k.ran = true
	if got, err := k.args("dir", "type=x"); err != nil || slices.Contains(got, "--no-cache") {
		t.Errorf("a second run: %q, %v", got, err)
	}
	k.Network = "bridge"
	if _, err := k.args("dir", "type=x"); !errors.Is(err, ErrInput) {
		t.Errorf("another network: %v", err)
	}
}
