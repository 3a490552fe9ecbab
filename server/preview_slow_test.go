package server

import (
	"io"
	"net"
	"testing"
	"time"
)

// A stranger who sends headers byte by byte is hung up on.
func TestPreviewOfSlowHeaders(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Preview = testURLs(t) })
	if limit := h.server.preview.http.ReadHeaderTimeout; limit <= 0 || limit > 10*time.Second {
		t.Errorf("headers may take %s", limit)
	}
	h.server.preview.http.ReadHeaderTimeout = 100 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- h.server.ServePreview(l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nA: ")
		for ; err == nil; time.Sleep(10 * time.Millisecond) {
			_, err = conn.Write([]byte("x"))
		}
	}()
	if err := conn.SetReadDeadline(start.Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Logf("the connection ended with %v", err)
	}
	// Any connection without a token ends after half a minute.
	if took := time.Since(start); took > 25*time.Second {
		t.Errorf("it took %s", took)
	}
	conn.Close()
	<-sent
	if err := h.server.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
