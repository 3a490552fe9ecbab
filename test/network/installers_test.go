package network

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/policy"
)

// TestInstallers: an ordinary user of a default sandbox installs Python and Node packages
// with pip, uv and npm, whose programs are then on PATH, and clones a repository. The
// indexes are this test's.
func TestInstallers(t *testing.T) {
	upstream := packages(t)
	port := portOf(upstream.Listener.Addr().String())
	b := startChanged(t, "runc", local.ProfileDefault, func(c *server.Config) {
		c.Templates = append(c.Templates, policy.Template{Name: "full", Network: providers.NetworkFull, ProviderOptions: []byte(`{"host_network": true}`)})
	}, port)
	for _, c := range []struct {
		network, host string
		request       sandgate.CreateRequest
	}{
		{"proxy", "index.example", sandgate.CreateRequest{Spec: &sandgate.Spec{Network: &sandgate.Network{Allow: []*sandboxv1.EgressRule{
			{Hosts: []string{"index.example"}, Ports: []uint32{port}}, {Cidrs: []string{"127.0.0.0/8"}, Ports: []uint32{port}},
		}}}}},
		{"full", "127.0.0.1", sandgate.CreateRequest{Template: "full"}},
	} {
		install(t, b.createFrom(c.request), c.network, fmt.Sprintf("http://%s:%d", c.host, port), globalConfig(t))
	}
}

// install has a sandbox's user install from the indexes at a URL, over a network of this
// name.
func install(t *testing.T, box *sandgate.Sandbox, network, base, globalConfig string) {
	t.Helper()
	host, _, _ := strings.Cut(strings.TrimPrefix(base, "http://"), ":")
	for _, step := range []struct{ name, script, want string }{
		{"user", "test $(id -u) -ne 0 && echo ordinary", "ordinary"},
		{"pip", "pip install -q --disable-pip-version-check --no-cache-dir --retries 0 --trusted-host " + host + " -i " + base + "/simple/ demo && demo-py", "python " + network},
		{"python -m pip", "python3 -m pip list --disable-pip-version-check 2>/dev/null | grep -c ^demo", "1"},
		// A virtual environment works as anywhere, though pip installs for the user by default.
		{"venv", "python3 -m venv --without-pip v && v/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'", "True"},
		{"uv", "pip install -q --disable-pip-version-check --no-cache-dir --retries 0 --trusted-host " + host + " -i " + base + "/simple/ uv && uv --version | cut -d' ' -f1", "uv"},
		{"uv venv, pip", "uv venv -q e && uv pip install -p e/bin/python demo 2>log && e/bin/demo-py && ! grep warning log", "python " + network},
		{"uv run", "uv run -q --no-project --with demo demo-py", "python " + network},
		{"uv project", "uv init -q p && cd p && uv add -q demo && uv run -q demo-py", "python " + network},
		// It replaces what pip has installed.
		{"uv tool", "uv tool install -q --force demo && demo-py", "python " + network},
		{"npm", "npm install -g --silent --no-audit --no-fund --fetch-retries=0 --registry " + base + "/npm/ demo && demo-js", "node " + network},
		{"npm ls", "npm ls -g --depth=0 | grep -c demo@1.0.0", "1"},
		{"npm's global configuration", "npm config get globalconfig", globalConfig},
		{"git", "git clone -q " + base + "/git/repo.git && cat repo/file", "cloned"},
		{"root file system", "touch /usr/x 2>/dev/null || echo read-only", "read-only"},
	} {
		script := "export NETWORK=" + network + " UV_DEFAULT_INDEX=" + base + "/simple/; " + step.script
		if got, code := sh(t, box, script); code != 0 || got != step.want {
			t.Errorf("%s, %s: exit code %d, %q instead of %q", network, step.name, code, got, step.want)
		}
	}
}

// globalConfig is npm's global configuration on this machine.
func globalConfig(t *testing.T) string {
	t.Helper()
	for _, prefix := range []string{"/usr/local", "/usr"} {
		if _, err := exec.LookPath(prefix + "/bin/node"); err == nil {
			return prefix + "/etc/npmrc"
		}
	}
	t.Fatal("this machine has no node below /usr")
	return ""
}

// packages serves an index of Python packages, a registry of Node packages, and a git
// repository.
func packages(t *testing.T) *httptest.Server {
	t.Helper()
	python := zipped(t, map[string]string{
		"demo.py":                             "import os\ndef main(): print('python', os.environ['NETWORK'])\n",
		"demo-1.0.dist-info/METADATA":         "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
		"demo-1.0.dist-info/WHEEL":            "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"demo-1.0.dist-info/entry_points.txt": "[console_scripts]\ndemo-py = demo:main\n",
		"demo-1.0.dist-info/RECORD":           "demo.py,,\ndemo-1.0.dist-info/METADATA,,\ndemo-1.0.dist-info/WHEEL,,\ndemo-1.0.dist-info/entry_points.txt,,\ndemo-1.0.dist-info/RECORD,,\n",
	})
	node := packed(t, map[string]string{
		"package/package.json": `{"name": "demo", "version": "1.0.0", "bin": {"demo-js": "cli.js"}}`,
		"package/cli.js":       "#!/usr/bin/env node\nconsole.log('node', process.env.NETWORK)\n",
	})
	dir := t.TempDir()
	script := "git init -q -b main work && cd work && echo cloned >file && git add file && git -c user.name=x -c user.email=x@x.example commit -qm x && git clone -q --bare . ../repo.git"
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	wheels, err := filepath.Glob("../../.tools/uv/uv-*.whl")
	if err != nil || len(wheels) != 1 {
		t.Fatalf("make setup installs one wheel of uv; there are %q, %v", wheels, err)
	}
	uv := wheels[0]
	programs, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/git/", &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(programs)), "git-http-backend"), Root: "/git",
		Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1"}, Logger: log.New(io.Discard, "", 0),
	})
	mux.HandleFunc("/simple/demo/", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `<html><body><a href="/files/demo-1.0-py3-none-any.whl">demo-1.0-py3-none-any.whl</a></body></html>`)
	})
	mux.HandleFunc("/files/demo-1.0-py3-none-any.whl", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(python) })
	mux.HandleFunc("/simple/uv/", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `<html><body><a href="/wheels/%[1]s">%[1]s</a></body></html>`, filepath.Base(uv))
	})
	mux.Handle("/wheels/", http.StripPrefix("/wheels/", http.FileServer(http.Dir(filepath.Dir(uv)))))
	mux.HandleFunc("/npm/demo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": "demo", "version": "1.0.0",
			"bin": {"demo-js": "cli.js"}, "dist": {"tarball": "http://%s/files/demo-1.0.0.tgz"}}}}`, r.Host)
	})
	mux.HandleFunc("/files/demo-1.0.0.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(node) })
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// zipped returns a zip archive of files.
func zipped(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		w, err := z.Create(name)
		if err == nil {
			_, err = io.WriteString(w, files[name])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// packed returns a compressed tar archive of executable files.
func packed(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
