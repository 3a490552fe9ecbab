//go:build docker

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"google.golang.org/protobuf/encoding/protojson"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// echoServer serves a page at port 8000, and echoes the messages of a WebSocket, of
// fewer than 126 bytes each.
const echoServer = `
import base64, hashlib, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        key = self.headers.get("Sec-WebSocket-Key")
        if key is None:
            body = ("%s %s" % (self.headers["Host"], self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        accept = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(accept).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8:
                return
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(head[1] & 127)))
            self.wfile.write(bytes([head[0], len(data)]) + data)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
`

// TestPreviewOnDocker needs a daemon, which "make test-docker" starts: a page, a
// WebSocket and a file of a container by URL.
func TestPreviewOnDocker(t *testing.T) {
	need(t)
	dir, err := os.MkdirTemp("", "sandgate-preview-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	s, err := serve(dir, "--provider", "docker", "--docker-image", os.Getenv("SANDGATE_DOCKER_IMAGE"), "--preview-listen", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	id := s.create(t)
	program := filepath.Join(t.TempDir(), "server.py")
	if err := os.WriteFile(program, []byte(echoServer), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(t, "cp", program, id+":/workspace/server.py")
	s.must(t, "exec", "--detach", id, "--", "python3", "server.py")

	u := s.urlOf(t, id, "8000")
	eventually(t, time.Minute, "the program listens", func() bool {
		code, _, _ := send(t, http.MethodGet, u.GetUrl(), nil, nil)
		return code != http.StatusBadGateway
	})
	code, body, _ := send(t, http.MethodGet, u.GetBaseUrl()+"page?q=1", nil, http.Header{"Authorization": {"Bearer " + u.GetToken()}})
	if code != http.StatusOK || string(body) != "localhost:8000 /page?q=1" {
		t.Errorf("the page: %d, %q", code, body)
	}
	if code, body, _ := send(t, http.MethodGet, u.GetBaseUrl()+"page", nil, nil); code != http.StatusUnauthorized {
		t.Errorf("without the token: %d, %q", code, body)
	}
	echoes(t, u)

	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if code, body, _ := send(t, http.MethodPut, s.urlOf(t, "--put", id, "/workspace/data").GetUrl(), content, nil); code >= 300 {
		t.Fatalf("PUT: %d, %q", code, body)
	}
	file := s.urlOf(t, id, "/workspace/data").GetUrl()
	if code, body, _ := send(t, http.MethodGet, file, nil, nil); code != http.StatusOK || !bytes.Equal(body, content) {
		t.Errorf("the file: %d, %d bytes", code, len(body))
	}
	code, body, header := send(t, http.MethodGet, file, nil, http.Header{"Range": {"bytes=16-20"}})
	if code != http.StatusPartialContent || string(body) != "01234" || header.Get("Content-Range") != fmt.Sprintf("bytes 16-20/%d", len(content)) {
		t.Errorf("a range: %d, %q, %v", code, body, header)
	}
	s.must(t, "rm", id)
	for _, target := range []string{u.GetUrl(), file} {
		if code, body, _ := send(t, http.MethodGet, target, nil, nil); code != http.StatusGone {
			t.Errorf("after the sandbox: %d, %q", code, body)
		}
	}
}

// urlOf creates a URL.
func (s *server) urlOf(t *testing.T, args ...string) *sandgate.URL {
	t.Helper()
	u := new(sandgate.URL)
	if err := protojson.Unmarshal([]byte(s.must(t, append([]string{"url", "--output", "json"}, args...)...)), u); err != nil {
		t.Fatal(err)
	}
	return u
}

// dialHere connects to a URL's port of this machine: not every resolver has *.localhost.
func dialHere(ctx context.Context, network, address string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
}

// send sends a request as a program does. It returns status, body and header of the
// response.
func send(t *testing.T, method, target string, content []byte, header http.Header) (int, []byte, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		r.Header = header
	}
	transport := &http.Transport{DialContext: dialHere}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, body, response.Header
}

// echoes fails the test unless a WebSocket returns what it was sent.
func echoes(t *testing.T, u *sandgate.URL) {
	t.Helper()
	base, err := url.Parse(u.GetBaseUrl())
	if err != nil {
		t.Fatal(err)
	}
	config, err := websocket.NewConfig("ws://"+base.Host+"/ws", "http://"+base.Host)
	if err != nil {
		t.Fatal(err)
	}
	config.Header = http.Header{"Authorization": {"Bearer " + u.GetToken()}}
	conn, err := dialHere(t.Context(), "tcp", base.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	ws, err := websocket.NewClient(config, conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"first", strings.Repeat("x", 125)} {
		if _, err := ws.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(text))
		if _, err := io.ReadFull(ws, got); err != nil || string(got) != text {
			t.Fatalf("the WebSocket returns %q of %q: %v", got, text, err)
		}
	}
}
