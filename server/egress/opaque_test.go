package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// statusOfHTTP1 sends a request of HTTP/1 and returns the status of the answer.
func statusOfHTTP1(t *testing.T, conn io.ReadWriter, _, host, target string) string {
	t.Helper()
	send(t, conn, "GET "+target+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return fmt.Sprint(response.StatusCode)
}

// statusOfHTTP2 does so with HTTP/2. A client of net/http would not send the target.
func statusOfHTTP2(t *testing.T, conn io.ReadWriter, scheme, host, target string) string {
	t.Helper()
	send(t, conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{{":method", "GET"}, {":scheme", scheme}, {":authority", host}, {":path", target}} {
		if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if headers, ok := frame.(*http2.MetaHeadersFrame); ok {
			return headers.PseudoValue("status")
		}
	}
}

// TestTargetThatIsNoPathIsRefused: a request whose target is not a path does not reach the
// upstream, which could take it for one of another host.
func TestTargetThatIsNoPathIsRefused(t *testing.T) {
	log := &seenRequests{}
	i := newIntercepted(t, log)
	dialer, policy, plain := server(t, log)
	for _, c := range []struct {
		name, scheme, protocol string
		send                   func(t *testing.T, conn io.ReadWriter, scheme, host, target string) string
		refused                string
	}{
		{"HTTP/1 in TLS", "https", "http/1.1", statusOfHTTP1, "403"},
		{"HTTP/2 in TLS", "https", "h2", statusOfHTTP2, "421"},
		{"HTTP/1", "http", "", statusOfHTTP1, "403"},
		{"HTTP/2", "http", "", statusOfHTTP2, "421"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for target, want := range map[string]string{
				"/": "200", "x:http://other.test/steal": c.refused, "http:https://other.test/p?q=1": c.refused, "x:a/../b": c.refused,
			} {
				log.take()
				var conn io.ReadWriteCloser
				host := i.target.String()
				if c.scheme == "https" {
					near, _ := i.open(t)
					_ = near.SetDeadline(time.Now().Add(20 * time.Second))
					conn = tls.Client(near, &tls.Config{RootCAs: i.roots, ServerName: "example.com", NextProtos: []string{c.protocol}})
				} else {
					near, _ := program(t, dialer, policy, plain)
					_ = near.SetDeadline(time.Now().Add(20 * time.Second))
					conn, host = near, plain.String()
				}
				status := c.send(t, conn, c.scheme, host, target)
				_ = conn.Close()
				if got := log.take(); status != want || want != "200" && len(got) > 0 {
					t.Errorf("%s: got %s, and the upstream %q", target, status, got)
				}
			}
		})
	}
}
