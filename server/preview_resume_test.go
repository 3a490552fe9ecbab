//go:build linux

package server_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/fake"
	"github.com/sandgate/sandgate/server"
)

// suspending lets the sandboxes of a fake be suspended.
type suspending struct {
	*fake.Provider
	mu        sync.Mutex
	suspended map[string]providers.Info
	resumed   int
}

var _ providers.Suspender = (*suspending)(nil)

func (s *suspending) Get(ctx context.Context, name string) (providers.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if info, ok := s.suspended[name]; ok {
		return info, nil
	}
	return s.Provider.Get(ctx, name)
}

func (s *suspending) Dial(ctx context.Context, name string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if info, ok := s.suspended[name]; ok {
		return nil, providers.NotActive(info, "it is suspended")
	}
	return s.Provider.Dial(ctx, name)
}

func (s *suspending) Suspend(ctx context.Context, name string) (providers.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := s.Provider.Get(ctx, name)
	if err != nil {
		return info, err
	}
	info.State = providers.StateSuspended
	s.suspended[name] = info
	return info, s.Delete(ctx, name, providers.Condition{})
}

func (s *suspending) Resume(ctx context.Context, name string) (providers.Info, net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, ok := s.suspended[name]
	if !ok {
		info, err := s.Provider.Get(ctx, name)
		return info, nil, err
	}
	delete(s.suspended, name)
	s.resumed++
	return s.Create(ctx, name, info.Spec)
}

// resumes returns how often a sandbox was resumed.
func (s *suspending) resumes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resumed
}

func newSuspending(t *testing.T) (*previewHarness, *suspending) {
	t.Helper()
	var s *suspending
	h := newPreview(t, func(c *server.Config) {
		s = &suspending{Provider: c.Provider.(*fake.Provider), suspended: map[string]providers.Info{}}
		c.Provider = s
	})
	return h, s
}

func (h *previewHarness) suspend() {
	h.t.Helper()
	if _, err := h.client.SuspendSandbox(h.t.Context(), &sandboxv1.SuspendSandboxRequest{SandboxId: "a"}); err != nil {
		h.t.Fatal(err)
	}
}

// A request resumes a suspended sandbox and is sent to the URL of its new incarnation,
// with the same path and query.
func TestPreviewResumes(t *testing.T) {
	h, s := newSuspending(t)
	port := h.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.RequestURI)) }))
	before := h.port(port)
	if got := text(t, h.do("GET", before.GetUrl(), nil)); got != "200 /" {
		t.Fatal(got)
	}
	h.suspend()
	resp := h.do("GET", before.GetBaseUrl()+"x%2Fy?q=1", nil, "Authorization", "Bearer "+before.GetToken(), "Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate")
	to := resp.Header.Get("Location")
	if resp.StatusCode != http.StatusTemporaryRedirect || strings.HasPrefix(to, before.GetBaseUrl()) ||
		!strings.Contains(to, "/x%2Fy?q=1&sandgate_token=") || resp.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	if got := text(t, h.do("GET", to, nil)); got != "200 /x%2Fy?q=1" {
		t.Error(got)
	}
	if got := text(t, h.do("GET", before.GetUrl(), nil)); !strings.HasPrefix(got, "410 ") {
		t.Error(got)
	}
	// A URL of a former incarnation resumes nothing.
	h.suspend()
	if got := text(t, h.do("GET", before.GetUrl(), nil)); !strings.HasPrefix(got, "410 ") || s.resumes() != 1 {
		t.Errorf("%s, %d resumptions", got, s.resumes())
	}
	// A URL that was made of a suspended sandbox does.
	made := h.port(port)
	if resp := h.do("GET", made.GetUrl(), nil); resp.StatusCode != http.StatusTemporaryRedirect || text(t, h.do("GET", resp.Header.Get("Location"), nil)) != "200 /" {
		t.Errorf("%d", resp.StatusCode)
	}
}

// Requests that arrive while the sandbox is suspended resume it once.
func TestPreviewResumesOnce(t *testing.T) {
	h, s := newSuspending(t)
	u := h.port(h.serve(http.NotFoundHandler()))
	h.suspend()
	statuses := make(chan int)
	for range 8 {
		go func() {
			resp, err := h.http.Get(u.GetUrl())
			if err != nil {
				statuses <- 0
				return
			}
			resp.Body.Close()
			statuses <- resp.StatusCode
		}()
	}
	redirected := 0
	for range 8 {
		switch got := <-statuses; got {
		case http.StatusTemporaryRedirect:
			redirected++
		case http.StatusGone: // it arrived after the resumption
		default:
			t.Errorf("%d", got)
		}
	}
	if redirected == 0 || s.resumes() != 1 {
		t.Errorf("%d redirects, %d resumptions", redirected, s.resumes())
	}
}

// A page that is left open tries to reconnect, and resumes nothing.
func TestPreviewOfOpenPageResumesNothing(t *testing.T) {
	h, s := newSuspending(t)
	u := h.port(h.serve(http.NotFoundHandler()))
	h.suspend()
	cookie := "__Host-sandgate=" + u.GetToken()
	resp := h.do("GET", u.GetBaseUrl(), nil, "Cookie", cookie, "Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "no-cors")
	if got := text(t, resp); !strings.HasPrefix(got, "503 ") || resp.Header.Get("Sandgate-Error") != "SANDBOX_NOT_ACTIVE" {
		t.Error(got)
	}
	if _, err := h.webSocket(u, u.GetBaseUrl(), http.Header{"Cookie": {cookie}}); err == nil {
		t.Error("a WebSocket was opened")
	}
	if s.resumes() != 0 {
		t.Error("the sandbox was resumed")
	}
}

// Files are read and written once the sandbox is resumed, also those that another
// site's page shows.
func TestPreviewOfFileResumes(t *testing.T) {
	h, _ := newSuspending(t)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	u := h.file(path, sandboxv1.FileUrlMethod_FILE_URL_METHOD_PUT)
	h.suspend()
	resp := h.do("PUT", u.GetUrl(), strings.NewReader("new"))
	if resp.StatusCode != http.StatusTemporaryRedirect {
		t.Fatal(text(t, resp))
	}
	if resp := h.do("PUT", resp.Header.Get("Location"), strings.NewReader("new")); resp.StatusCode != http.StatusNoContent {
		t.Fatal(text(t, resp))
	}
	u = h.file(path, 0)
	h.suspend()
	resp = h.do("GET", u.GetUrl(), nil, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors")
	if resp.StatusCode != http.StatusTemporaryRedirect {
		t.Fatal(text(t, resp))
	}
	if got := text(t, h.do("GET", resp.Header.Get("Location"), nil)); got != "200 new" {
		t.Error(got)
	}
}
