//go:build linux

package server_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"github.com/sandgate/sandgate/server"
)

// A server that stops refuses new requests and lets running ones end.
func TestPreviewDrains(t *testing.T) {
	h := newPreview(t, func(c *server.Config) { c.Timing.Drain = time.Minute })
	arrived, finish := make(chan struct{}), make(chan struct{})
	u := h.port(h.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			return
		}
		close(arrived)
		<-finish
		fmt.Fprint(w, "done")
	})))
	running := make(chan string, 1)
	go func() {
		resp, err := h.http.Get(u.GetUrl())
		if err != nil {
			running <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		running <- string(body)
	}()
	<-arrived
	ended := make(chan error, 1)
	go func() { ended <- h.end() }()
	for {
		resp := h.do("GET", u.GetBaseUrl()+"other", nil, "Authorization", "Bearer "+u.GetToken())
		if resp.StatusCode == http.StatusServiceUnavailable {
			if resp.Header.Get("Retry-After") == "" {
				t.Error("without Retry-After")
			}
			break
		}
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%d while the server stops", resp.StatusCode)
		}
	}
	close(finish)
	if got := <-running; got != "done" {
		t.Errorf("the running request got %q", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// After the drain, connections end whose receivers read nothing, upgraded ones too.
func TestPreviewCutsAfterDrain(t *testing.T) {
	h := newPreview(t, func(c *server.Config) { c.Timing.Drain = time.Millisecond })
	flood := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}
		websocket.Handler(func(c *websocket.Conn) {
			for {
				if _, err := c.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}).ServeHTTP(w, r)
	})
	u := h.port(h.serve(flood))
	resp := h.do("GET", u.GetUrl(), nil)
	if _, err := h.webSocket(u, u.GetUrl(), nil); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 {
		t.Fatal(resp.StatusCode)
	}
	if err := h.end(); err != nil {
		t.Fatal(err)
	}
}
