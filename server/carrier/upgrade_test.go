package carrier

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// An upgraded connection of HTTP to a silent upstream gives its slot back when the
// agent ends it, also when it is not the program's first to the upstream.
func TestUpgradeGivesItsSlotBack(t *testing.T) {
	silent := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			w.Header().Set("Connection", "close")
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = buffered.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = buffered.Flush()
		<-silent
	}))
	t.Cleanup(func() { close(silent); upstream.Close() })
	port := uint32(upstream.Listener.Addr().(*net.TCPAddr).Port)
	h := start(t, 1, allow(port))
	stream := h.hold(t)
	announce(t, stream, 1, "ok.example", port)
	c := next(t, h.carried)
	for _, request := range []struct{ headers, status string }{{"", "200 "}, {"Connection: Upgrade\r\nUpgrade: websocket\r\n", "101 "}} {
		if err := c.stream.Send(data(fmt.Sprintf("GET / HTTP/1.1\r\nHost: ok.example:%d\r\n%s\r\n", port, request.headers))); err != nil {
			t.Fatal(err)
		}
		answer := ""
		for !strings.HasSuffix(answer, "\r\n\r\n") {
			m, err := c.stream.Recv()
			if err != nil {
				t.Fatalf("after %q: %v", answer, err)
			}
			answer += string(m.GetData())
		}
		if !strings.HasPrefix(answer, "HTTP/1.1 "+request.status) {
			t.Fatalf("got %q", answer)
		}
	}
	close(c.done)
	next(t, h.ended)
	announce(t, stream, 2, "ok.example", port)
	if c := next(t, h.carried); c.id != 2 {
		t.Errorf("id %d", c.id)
	}
}
