//go:build linux

package server_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/audit"
)

// A WebSocket and its program see the same Host as plain requests.
func TestPreviewOfWebSocket(t *testing.T) {
	h := newPreview(t, nil)
	mux := http.NewServeMux()
	mux.Handle("/ws", websocket.Server{Handler: func(c *websocket.Conn) {
		_, _ = io.Copy(c, c)
	}, Handshake: func(_ *websocket.Config, r *http.Request) error {
		if r.Header.Get("Origin") != "http://"+r.Host || !strings.HasPrefix(r.Host, "localhost:") {
			return fmt.Errorf("host %q, origin %q", r.Host, r.Header.Get("Origin"))
		}
		return nil
	}})
	u := h.port(h.serve(mux))
	ws, err := h.webSocket(u, u.GetBaseUrl()+"ws", http.Header{"Cookie": {"__Host-sandgate=" + u.GetToken()}})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 1 << 10, 1 << 20} {
		sent := bytes.Repeat([]byte("w"), size)
		go func() { _, _ = ws.Write(sent) }()
		got := make([]byte, size)
		if _, err := io.ReadFull(ws, got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes: %v", size, err)
		}
	}
	if err := ws.Close(); err != nil {
		t.Fatal(err)
	}
	h.audit.wait(t, func(r audit.Record) bool { return r.Operation == "Forward" && r.Phase == audit.Ended })
}

// An upgraded connection ends with its token.
func TestPreviewEndsWithToken(t *testing.T) {
	h := newPreview(t, nil)
	port := h.serve(websocket.Handler(func(c *websocket.Conn) { _, _ = io.Copy(c, c) }))
	var u *sandboxv1.CreateSandboxUrlResponse
	var ws *websocket.Conn
	// On a busy machine the URL may expire before the handshake ends.
	for ttl := time.Second; ws == nil; ttl *= 2 {
		u = h.url(&sandboxv1.CreateSandboxUrlRequest{Target: &sandboxv1.CreateSandboxUrlRequest_Port{Port: port}, Ttl: durationpb.New(ttl)})
		var err error
		if ws, err = h.webSocket(u, u.GetUrl(), nil); err != nil && ttl > time.Minute {
			t.Fatal(err)
		}
	}
	if _, err := ws.Read(make([]byte, 1)); err == nil {
		t.Fatal("the connection outlived its token")
	}
	if now := time.Now(); now.Before(u.GetExpireTime().AsTime()) {
		t.Errorf("it ended %s before the token", u.GetExpireTime().AsTime().Sub(now))
	}
}

// Events arrive one by one, not when the response ends.
func TestPreviewOfEvents(t *testing.T) {
	h := newPreview(t, nil)
	more := make(chan struct{})
	u := h.port(h.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			select {
			case <-more:
			case <-r.Context().Done():
			}
		}
	})))
	resp := h.do("GET", u.GetUrl(), nil)
	lines := bufio.NewScanner(resp.Body)
	for i := range 3 {
		if !lines.Scan() || lines.Text() != "data: "+strconv.Itoa(i) || !lines.Scan() {
			t.Fatalf("%q, %v", lines.Text(), lines.Err())
		}
		more <- struct{}{}
	}
}

// Over TLS, HTTP/2 works, and WebSockets beside it.
func TestPreviewOverTLS(t *testing.T) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	pair := certificate.TLS.Certificates[0]
	certificate.Close()
	h := newPreview(t, func(c *server.Config) {
		c.PreviewTLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	})
	port := h.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto, " ", r.Host) }))
	u := h.port(port)
	client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the certificate is for another name
		DialContext:     h.dial}}
	defer client.CloseIdleConnections()
	resp, err := client.Get(strings.Replace(u.GetUrl(), "http", "https", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := text(t, resp); resp.ProtoMajor != 2 || got != fmt.Sprintf("200 HTTP/1.1 localhost:%d", port) {
		t.Errorf("%s: %s", resp.Proto, got)
	}
}
