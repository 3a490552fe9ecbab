//go:build linux

package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/listen"
	"github.com/sandgate/sandgate/server/preview"
	"github.com/sandgate/sandgate/test/testserver"
)

// previewHarness is a server with real agents and a preview listener, and the sandbox
// "a".
type previewHarness struct {
	t      *testing.T
	srv    *server.Server
	client sandboxv1.SandboxServiceClient
	addr   string // of the preview listener
	http   *http.Client
	audit  *auditRecords
	end    func() error // of the server
}

// auditRecords keeps audit records.
type auditRecords struct {
	mu   sync.Mutex
	list []audit.Record
}

func (a *auditRecords) Audit(_ context.Context, r audit.Record) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, r)
	return nil
}

// wait returns the first record that matches.
func (a *auditRecords) wait(t *testing.T, match func(audit.Record) bool) audit.Record {
	t.Helper()
	return a.waitFor(t, 1, match)
}

// waitFor returns the n-th record that matches.
func (a *auditRecords) waitFor(t *testing.T, n int, match func(audit.Record) bool) audit.Record {
	t.Helper()
	for late := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		a.mu.Lock()
		list := a.list
		a.mu.Unlock()
		found := 0
		for _, r := range list {
			if match(r) {
				if found++; found == n {
					return r
				}
			}
		}
		if time.Now().After(late) {
			t.Fatalf("no %d such records in %+v", n, list)
		}
	}
}

func newPreview(t *testing.T, change func(*server.Config)) *previewHarness {
	t.Helper()
	machine, dir := testserver.Machine(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &previewHarness{t: t, addr: l.Addr().String(), audit: &auditRecords{}}
	_, port, _ := net.SplitHostPort(h.addr)
	urls, err := preview.NewURLs([]byte("0123456789abcdef"), "http", "localhost:"+port, 0)
	if err != nil {
		t.Fatal(err)
	}
	cfg := server.Config{
		Provider: machine.Open(), Preview: urls, Audit: h.audit,
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&cfg)
	}
	if h.srv, err = server.New(cfg); err != nil {
		t.Fatal(err)
	}
	socket, err := listen.Open(t.Context(), "unix:"+filepath.Join(dir, "server.sock"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 2)
	go func() { served <- h.srv.Serve(socket) }()
	go func() { served <- h.srv.ServePreview(l) }()
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "server.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	h.end = sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return errors.Join(h.srv.Shutdown(ctx), <-served, <-served)
	})
	h.http = &http.Client{Transport: &http.Transport{DialContext: h.dial},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(func() {
		h.http.CloseIdleConnections()
		conn.Close()
		if err := h.end(); err != nil {
			t.Error(err)
		}
	})
	h.client = sandboxv1.NewSandboxServiceClient(conn)
	if _, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
	return h
}

// dial connects to the preview listener, whatever the address.
func (h *previewHarness) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", h.addr)
}

// serve runs a program in the sandbox that serves HTTP, and returns its port.
func (h *previewHarness) serve(handler http.Handler) int32 {
	h.t.Helper()
	s := httptest.NewServer(handler)
	h.t.Cleanup(s.Close)
	return int32(s.Listener.Addr().(*net.TCPAddr).Port)
}

func (h *previewHarness) url(req *sandboxv1.CreateSandboxUrlRequest) *sandboxv1.CreateSandboxUrlResponse {
	h.t.Helper()
	req.SandboxId = "a"
	u, err := h.client.CreateSandboxUrl(h.t.Context(), req)
	if err != nil {
		h.t.Fatal(err)
	}
	return u
}

func (h *previewHarness) port(port int32) *sandboxv1.CreateSandboxUrlResponse {
	h.t.Helper()
	return h.url(&sandboxv1.CreateSandboxUrlRequest{Target: &sandboxv1.CreateSandboxUrlRequest_Port{Port: port}})
}

func (h *previewHarness) file(path string, method sandboxv1.FileUrlMethod) *sandboxv1.CreateSandboxUrlResponse {
	h.t.Helper()
	return h.url(&sandboxv1.CreateSandboxUrlRequest{Target: &sandboxv1.CreateSandboxUrlRequest_Path{Path: path}, Method: method})
}

// ended returns how many requests of a kind have ended.
func (h *previewHarness) ended(kind string) float64 {
	h.t.Helper()
	families, err := h.srv.Registry().Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	n := 0.0
	for _, f := range families {
		if f.GetName() != "sandgate_preview_requests_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "kind" && l.GetValue() == kind {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

// do sends a request with headers, given as names and values.
func (h *previewHarness) do(method, target string, body io.Reader, headers ...string) *http.Response {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), method, target, body)
	if err != nil {
		h.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := h.http.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// text returns a response's status and body.
func text(t *testing.T, resp *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, body)
}

const browser = "text/html,application/xhtml+xml,*/*;q=0.8"

// raw sends bytes to the listener and returns everything up to the connection's end.
func (h *previewHarness) raw(request string) string {
	h.t.Helper()
	conn, err := h.dial(h.t.Context(), "", "")
	if err != nil {
		h.t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		h.t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		h.t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := got.ReadFrom(conn); err != nil && got.Len() == 0 {
		h.t.Fatal(err)
	}
	return got.String()
}

// webSocket opens a WebSocket as a page of the URL does.
func (h *previewHarness) webSocket(u *sandboxv1.CreateSandboxUrlResponse, target string, header http.Header) (*websocket.Conn, error) {
	h.t.Helper()
	config, err := websocket.NewConfig(strings.Replace(target, "http", "ws", 1), strings.TrimSuffix(u.GetBaseUrl(), "/"))
	if err != nil {
		h.t.Fatal(err)
	}
	if header != nil {
		config.Header = header
	}
	conn, err := h.dial(h.t.Context(), "", "")
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close() })
	return websocket.NewClient(config, conn)
}
