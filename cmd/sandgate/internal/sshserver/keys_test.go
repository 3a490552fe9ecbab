package sshserver

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
)

const someKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJzr1ZTTRHJ8sJbDWDuuJb2lCMRQjmFLJgJmVQLdyHoS"

func TestParseKeys(t *testing.T) {
	for content, want := range map[string]int{
		"":                                   0,
		"# a comment\n\n  \n":                0,
		someKey:                              1,
		someKey + " somebody@somewhere\r\n":  1,
		someKey + "\n# x\n" + someKey + "\n": 2,
		`sandboxes="a" ` + someKey:           1,
		`no-X11-forwarding,SANDBOXES="a,b*" ` + someKey:        1,
		`token-file="/a b\"c",sandboxes="x" ` + someKey + " c": 1,
	} {
		if got, err := parseKeys([]byte(content)); err != nil || len(got) != want {
			t.Errorf("%q: %v, %v", content, got, err)
		}
	}
	got, err := parseKeys([]byte(`token-file="/a b\"c",sandboxes="x,y*",sandboxes="z" ` + someKey))
	if err != nil || got[0].tokenFile != `/a b"c` || strings.Join(got[0].sandboxes, " ") != "x y* z" {
		t.Errorf("%+v, %v", got, err)
	}
	for content, want := range map[string]string{
		"nonsense":                              "line 1: it is not",
		"\n\nssh-ed25519 AAAA":                  "line 3: it is not",
		"ssh-rsa " + strings.Fields(someKey)[1]: "line 1: it is not",
		`command="ls" ` + someKey:               "the option command: it is not supported",
		"restrict " + someKey:                   "the option restrict: it is not supported",
		`from="10.0.0.0/8" ` + someKey:          "the option from: it is not supported",
		"cert-authority " + someKey:             "the option cert-authority: it is not supported",
		`sandboxes="" ` + someKey:               "neither an id",
		"sandboxes " + someKey:                  "neither an id",
		"sandboxes=a " + someKey:                "needs quotes",
		`sandboxes="*" ` + someKey:              "neither an id",
		`sandboxes="a*b" ` + someKey:            "neither an id",
		`sandboxes="a,,b" ` + someKey:           "neither an id",
		`token-file="a" ` + someKey:             "absolute path",
		`token-file="/a ` + someKey:             "line 1",
	} {
		if got, err := parseKeys([]byte(content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", content, got, err)
		}
	}
}

func TestAllows(t *testing.T) {
	for _, tt := range []struct {
		patterns []string
		sandbox  string
		want     bool
	}{
		{nil, "x", true}, {[]string{"a"}, "a", true}, {[]string{"a"}, "ab", false}, {[]string{"a*"}, "ab", true}, {[]string{"a*"}, "a", true},
		{[]string{"a*"}, "b", false}, {[]string{"a", "b"}, "b", true}, {[]string{"a*"}, "", false},
	} {
		if got := (entry{sandboxes: tt.patterns}).allows(tt.sandbox); got != tt.want {
			t.Errorf("%v: %q: %v", tt.patterns, tt.sandbox, got)
		}
	}
}

// A file that is accepted holds only keys, and no line of it was left out.
func FuzzParseKeys(f *testing.F) {
	for _, seed := range []string{someKey, `sandboxes="a,b*" ` + someKey, `token-file="/x",no-user-rc ` + someKey + " c\n#\n", "restrict " + someKey, `a="\"" ` + someKey} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		entries, err := parseKeys(content)
		if err != nil {
			return
		}
		lines := 0
		for line := range bytes.Lines(content) {
			if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
				lines++
			}
		}
		if lines != len(entries) {
			t.Errorf("%d entries of %d lines", len(entries), lines)
		}
		for _, e := range entries {
			if _, err := ssh.ParsePublicKey(e.key); err != nil {
				t.Error(err)
			}
			if e.tokenFile != "" && !filepath.IsAbs(e.tokenFile) || e.sandboxes != nil && (e.allows("") || len(e.sandboxes) == 0) {
				t.Errorf("%+v", e)
			}
		}
	})
}

func TestHostKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "key")
	var work sync.WaitGroup
	var made [8]ssh.Signer
	for i := range made {
		work.Go(func() {
			var err error
			if made[i], err = HostKey(path); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	for _, key := range made {
		if key == nil || line(key) != line(made[0]) {
			t.Fatal("servers that started at once have different keys")
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := HostKey(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that others can read: %v", err)
	}
	if err := errors.Join(os.WriteFile(path, []byte("nonsense"), 0o600), os.Chmod(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := HostKey(path); err == nil || !strings.Contains(err.Error(), "no private key") {
		t.Errorf("nonsense: %v", err)
	}
	if _, err := HostKey("/proc/none/key"); err == nil {
		t.Error("a key was made where there can be none")
	}
	if _, err := OpenKeys(slog.New(slog.DiscardHandler), path+".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing keys: %v", err)
	}
}
