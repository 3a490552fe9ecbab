//go:build linux

package server_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// A caller that neither sends nor receives ends with its token.
func TestPreviewOfStalledCaller(t *testing.T) {
	h := newPreview(t, nil)
	flood := h.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var to io.Writer = w
		if r.Header.Get("Upgrade") != "" {
			conn, buf, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = buf.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: flood\r\n\r\n")
			_ = buf.Flush()
			to = conn
		}
		for {
			if _, err := to.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	}))
	path := filepath.Join(t.TempDir(), "file")
	for name, c := range map[string]struct {
		kind    string
		request sandboxv1.CreateSandboxUrlRequest_Path
		head    string
		rest    string
	}{
		"a body that does not come":   {"file", sandboxv1.CreateSandboxUrlRequest_Path{Path: path}, "PUT", "Content-Length: 9\r\n\r\nx"},
		"a response that is not read": {kind: "port", head: "GET", rest: "\r\n"},
		"an upgraded connection":      {kind: "port", head: "GET", rest: "Connection: Upgrade\r\nUpgrade: flood\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			// On a busy machine the URL may expire before the request arrives.
			for ttl := 2 * time.Second; ; ttl *= 2 {
				refused, before := h.ended("refused"), h.ended(c.kind)
				req := &sandboxv1.CreateSandboxUrlRequest{Ttl: durationpb.New(ttl), Target: &sandboxv1.CreateSandboxUrlRequest_Port{Port: flood}}
				if c.kind == "file" {
					req.Target, req.Method = &c.request, sandboxv1.FileUrlMethod_FILE_URL_METHOD_PUT
				}
				u := h.url(req)
				host, file, _ := strings.Cut(strings.TrimPrefix(u.GetBaseUrl(), "http://"), "/")
				conn, err := h.dial(t.Context(), "", "")
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if _, err := io.WriteString(conn, c.head+" /"+file+" HTTP/1.1\r\nHost: "+host+"\r\nAuthorization: Bearer "+u.GetToken()+"\r\n"+c.rest); err != nil {
					t.Fatal(err)
				}
				for late := time.Now().Add(ttl + time.Minute); h.ended(c.kind) == before && h.ended("refused") == refused; time.Sleep(10 * time.Millisecond) {
					if time.Now().After(late) {
						t.Fatal("the request outlives its token")
					}
				}
				if h.ended("refused") != refused && ttl < time.Minute {
					continue
				}
				if early := time.Until(u.GetExpireTime().AsTime()); early > 0 {
					t.Errorf("it ended %s before the token", early)
				}
				return
			}
		})
	}
}

// A machine's connections without a valid token are bounded: the oldest is closed. One
// with a token stays.
func TestPreviewBoundsConnections(t *testing.T) {
	h := newPreview(t, nil)
	u := h.port(h.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })))
	open := func() net.Conn {
		t.Helper()
		conn, err := h.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	ours := open()
	buffered := bufio.NewReader(ours)
	use := func() {
		t.Helper()
		host := strings.TrimSuffix(strings.TrimPrefix(u.GetBaseUrl(), "http://"), "/")
		if _, err := io.WriteString(ours, "GET / HTTP/1.1\r\nHost: "+host+"\r\nAuthorization: Bearer "+u.GetToken()+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(buffered, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got := text(t, resp); got != "200 hello" {
			t.Fatal(got)
		}
	}
	use()
	// A connection without a token ends after half a minute in any case.
	for attempt := range 5 {
		start := time.Now()
		oldest := open()
		for range 256 {
			open()
		}
		if n, err := oldest.Read(make([]byte, 1)); err == nil {
			t.Fatalf("%d bytes", n)
		}
		if time.Since(start) < 25*time.Second {
			break
		} else if attempt == 4 {
			t.Error("the oldest connection stays")
		}
		use()
	}
	use()
}
