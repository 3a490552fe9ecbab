package build

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/client"
)

// A daemon whose builder fails for a reason of its own is asked again; a command that
// fails is not run again.
func TestBuildIsTriedAgainUnlessACommandFailed(t *testing.T) {
	t.Parallel()
	const (
		own     = `{"errorDetail": {"message": "unable to find image"}}`
		command = `{"errorDetail": {"code": 7, "message": "returned a non-zero code: 7"}}`
		built   = `{"aux": {"ID": "sha256:1"}}`
	)
	for _, c := range []struct {
		name    string
		answers []string
		tries   int
		fails   bool
	}{
		{"once", []string{own, built}, 2, false},
		{"twice", []string{own, own, built}, 3, false},
		{"always", []string{own, own, own, built}, 3, true},
		{"command", []string{command, built}, 1, true},
		{"no image", []string{"", built}, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var tries atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Api-Version", "1.41")
				switch {
				case strings.HasSuffix(r.URL.Path, "/build"):
					fmt.Fprintln(w, c.answers[tries.Add(1)-1])
				case strings.HasSuffix(r.URL.Path, "/json"):
					http.Error(w, `{"message": "no such image"}`, http.StatusNotFound)
				default:
					w.WriteHeader(http.StatusCreated)
				}
			}))
			defer server.Close()
			docker, err := client.New(client.WithHost("tcp://" + server.Listener.Addr().String()))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = docker.Close() }()
			dir := t.TempDir()
			writeFiles(t, dir, map[string]string{"Dockerfile": "FROM scratch\n"})
			var output bytes.Buffer
			r, err := Build(t.Context(), docker, Options{Dir: dir, StateDir: t.TempDir(), Output: &output})
			if errors.Is(err, ErrFailed) != c.fails || !c.fails && (err != nil || r.ID != "sha256:1") {
				t.Errorf("%+v, %v", r, err)
			}
			if n := int(tries.Load()); n != c.tries || strings.Count(output.String(), "trying again") != n-1 {
				t.Errorf("%d tries instead of %d:\n%s", n, c.tries, output.String())
			}
		})
	}
}
