package upstream

import (
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
)

// Registry is a registry of images that wants a password. Content serves without one.
type Registry struct {
	Host    string
	Content http.Handler
}

// ServeRegistry serves an empty registry.
func ServeRegistry(t testing.TB) Registry {
	t.Helper()
	r := Registry{Content: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if user, password, _ := q.BasicAuth(); user != "robot" || password != "pass:word" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		r.Content.ServeHTTP(w, q)
	}))
	t.Cleanup(server.Close)
	r.Host = strings.TrimPrefix(server.URL, "http://")
	return r
}

// Login gives the process the password for the rest of the test, as "docker login" does.
func (r Registry) Login(t testing.TB) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	auth := base64.StdEncoding.EncodeToString([]byte("robot:pass:word"))
	if err := os.WriteFile(filepath.Join(dir, "config.json"), fmt.Appendf(nil, `{"auths": {%q: {"auth": %q}}}`, r.Host, auth), 0o600); err != nil {
		t.Fatal(err)
	}
}
