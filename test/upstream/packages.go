package upstream

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
)

// Packages serves an index of Python packages, a registry of Node packages, and a git
// repository.
func Packages(t testing.TB) *httptest.Server {
	t.Helper()
	python := Zipped(t, map[string]string{
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

// Zipped returns a zip archive of files.
func Zipped(t testing.TB, files map[string]string) []byte {
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
func packed(t testing.TB, files map[string]string) []byte {
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
