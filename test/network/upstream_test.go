package network

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sandgate/sandgate/test/upstream"
)

// guarded is an upstream of HTTPS for git.example, api.example and other.example
// that wants a secret: a git repository, a package index, and pages. packages.example
// is an index that must get none.
type guarded struct {
	*httptest.Server
	secret atomic.Pointer[string]
	seen   atomic.Pointer[string] // the Authorization of the last request for other.example
	roots  *x509.CertPool
	repo   string
	wheel  []byte
}

func newGuarded(t *testing.T, secret string) *guarded {
	t.Helper()
	g := &guarded{repo: t.TempDir(), wheel: wheel(t), roots: x509.NewCertPool()}
	g.secret.Store(&secret)
	if out, err := exec.Command("git", "init", "-q", "--bare", "-b", "main", filepath.Join(g.repo, "repo.git")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command("git", "-C", filepath.Join(g.repo, "repo.git"), "config", "http.receivepack", "true").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	backend, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	git := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(backend)), "git-http-backend"), Root: "/git",
		Env: []string{"GIT_PROJECT_ROOT=" + g.repo, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=x"}, Logger: log.New(io.Discard, "", 0),
	}
	mux := http.NewServeMux()
	mux.Handle("/git/", g.wants(g.basic, git))
	mux.Handle("/simple/demo/", g.wants(g.basic, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `<html><body><a href="/files/demo-1.0-py3-none-any.whl">demo-1.0-py3-none-any.whl</a></body></html>`)
	})))
	mux.Handle("packages.example/", markdown(t))
	mux.Handle("/files/", g.wants(g.basic, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(g.wheel) })))
	mux.Handle("api.example/check", g.wants(g.bearer, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "ok ", r.Proto) })))
	mux.HandleFunc("api.example/key", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("X-Api-Key") == *g.secret.Load(), " ", r.URL.RawQuery)
	})
	mux.HandleFunc("api.example/size", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, " ", err, " ", g.bearer(r))
	})
	mux.HandleFunc("api.example/echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Echo", r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "Echo-At-End")
		fmt.Fprint(w, "body-of-the-echo")
		w.Header().Set("Echo-At-End", r.Header.Get("Authorization"))
	})
	mux.HandleFunc("api.example/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: first\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("api.example/away", func(w http.ResponseWriter, r *http.Request) {
		_, port, _ := strings.Cut(r.Host, ":")
		http.Redirect(w, r, "https://other.example:"+port+"/", http.StatusFound)
	})
	mux.HandleFunc("other.example/", func(w http.ResponseWriter, r *http.Request) {
		seen := r.Header.Get("Authorization")
		g.seen.Store(&seen)
		fmt.Fprint(w, "other")
	})
	g.Server = httptest.NewUnstartedServer(mux)
	g.Config.ErrorLog = log.New(io.Discard, "", 0)
	g.EnableHTTP2 = true
	g.TLS = &tls.Config{Certificates: []tls.Certificate{upstream.Certificate(t, g.roots, "git.example", "api.example", "other.example", "packages.example")}}
	g.StartTLS()
	t.Cleanup(g.Close)
	return g
}

func (g *guarded) basic(r *http.Request) bool {
	user, password, _ := r.BasicAuth()
	return user == "x-access-token" && password == *g.secret.Load()
}

func (g *guarded) bearer(r *http.Request) bool {
	return r.Header.Get("Authorization") == "Bearer "+*g.secret.Load()
}

// wants lets requests with the secret pass.
func (g *guarded) wants(has func(*http.Request) bool, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !has(r) {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, "the secret is missing", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// wheel returns a package of Python without modules.
func wheel(t *testing.T) []byte {
	t.Helper()
	return upstream.Zipped(t, map[string]string{
		"demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
		"demo-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"demo-1.0.dist-info/RECORD":   "demo-1.0.dist-info/METADATA,,\ndemo-1.0.dist-info/WHEEL,,\ndemo-1.0.dist-info/RECORD,,\n",
	})
}

// markdown is an index with a package markdown, which knows headings only.
func markdown(t *testing.T) http.Handler {
	t.Helper()
	const file = "markdown-1.0-py3-none-any.whl"
	archive := upstream.Zipped(t, map[string]string{
		"markdown/__init__.py":            "",
		"markdown/__main__.py":            "import html, sys\nprint('<h1>' + html.escape(open(sys.argv[1]).read().strip('# \\n')) + '</h1>')\n",
		"markdown-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: markdown\nVersion: 1.0\n",
		"markdown-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"markdown-1.0.dist-info/RECORD":   "markdown/__init__.py,,\nmarkdown/__main__.py,,\nmarkdown-1.0.dist-info/METADATA,,\nmarkdown-1.0.dist-info/WHEEL,,\nmarkdown-1.0.dist-info/RECORD,,\n",
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "":
			http.Error(w, "a secret of another host", http.StatusBadRequest)
		case r.URL.Path == "/simple/markdown/":
			fmt.Fprintf(w, `<html><body><a href="/files/%[1]s">%[1]s</a></body></html>`, file)
		case r.URL.Path == "/files/"+file:
			_, _ = w.Write(archive)
		default:
			http.NotFound(w, r)
		}
	})
}
