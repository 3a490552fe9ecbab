package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func newTestTrust(t *testing.T, dir string) *trust {
	t.Helper()
	return &trust{dir: dir, log: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

func TestTrust(t *testing.T) {
	tr := newTestTrust(t, t.TempDir())
	own := []string{"A=b", "CURL_CA_BUNDLE=/own"}
	env := tr.environ([]byte("first\n"), own)
	if !slices.Equal(env[:2], own) || len(env) != 1+len(bundleVariables)+len(authorityVariables) {
		t.Errorf("%q", env)
	}
	read := func(variable string) string {
		t.Helper()
		for _, kv := range env {
			if path, ok := strings.CutPrefix(kv, variable+"="); ok {
				content, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				return string(content)
			}
		}
		t.Fatalf("no %s in %q", variable, env)
		return ""
	}
	path, info := systemBundle()
	system := ""
	if info != nil {
		content, err := readBundle(path)
		if err != nil {
			t.Fatal(err)
		}
		system = string(content) + "\n"
	}
	check := func(want string) {
		t.Helper()
		if got := read("SSL_CERT_FILE"); got != system+want {
			t.Errorf("the bundle has %d bytes and ends with %q", len(got), got[max(0, len(got)-20):])
		}
		if got := read("NODE_EXTRA_CA_CERTS"); got != want {
			t.Errorf("the authority is %q", got)
		}
	}
	check("first\n")
	// Another certificate, and a command that has removed the file.
	env = tr.environ([]byte("second\n"), nil)
	check("second\n")
	if err := os.Remove(filepath.Join(tr.dir, bundleFile)); err != nil {
		t.Fatal(err)
	}
	env = tr.environ([]byte("second\n"), nil)
	check("second\n")
	left, err := filepath.Glob(filepath.Join(tr.dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// Without a place for the files a command runs all the same.
func TestCommandRunsIfTrustFilesCannotBeWritten(t *testing.T) {
	for _, dir := range []string{"", filepath.Join(t.TempDir(), "missing")} {
		if env := newTestTrust(t, dir).environ([]byte("x"), []string{"A=b"}); !slices.Equal(env, []string{"A=b"}) {
			t.Errorf("%q: %q", dir, env)
		}
	}
}
