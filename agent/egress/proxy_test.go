package egress

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// exchange sends text, ends its direction, and returns everything that comes back.
func exchange(t *testing.T, address, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).CloseWrite()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	got, _ := io.ReadAll(conn)
	return string(got)
}

func TestConnect(t *testing.T) {
	s, client := start(t, time.Second)
	u := &upstream{client: client, dials: map[string]string{"ok.example:443": echo(t), "down.example:443": "127.0.0.1:1"}}
	u.attach(t)
	for _, c := range []struct{ target, want string }{
		{"ok.example:443", "HTTP/1.1 200 Connection established\r\n\r\necho early"},
		{"no.example:443", "HTTP/1.1 403 no rule for no.example:443\r\n"},
		{"down.example:443", "HTTP/1.1 502 no rule for down.example:443\r\n"},
		{"ok.example", "HTTP/1.1 400 the destination must be HOST:PORT, not \"ok.example\"\r\n"},
		{"ok.example:99999", "HTTP/1.1 400 the destination must be HOST:PORT, not \"ok.example:99999\"\r\n"},
		{"ok.example:443 SPDY/1", "HTTP/1.1 400 the request is malformed, or its head is too long\r\n"},
		{"ok.example:443 HTTP/1.1\r\nX: " + strings.Repeat("x", maxHeader), "HTTP/1.1 400 the request is malformed, or its head is too long\r\n"},
	} {
		got := exchange(t, s.cfg.Proxy, "CONNECT "+c.target+" HTTP/1.1\r\nHost: "+c.target+"\r\n\r\nearly")
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.target, got, c.want)
		}
	}
}

// A connection whose first request is another one may become a tunnel, too.
func TestConnectAfterAnotherRequest(t *testing.T) {
	s, client := start(t, time.Second)
	(&upstream{client: client, dials: map[string]string{"ok.example:443": echo(t)}}).attach(t)
	conn, err := net.Dial("tcp", s.cfg.Proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	in := bufio.NewReader(conn)
	for _, c := range []struct {
		request string
		status  int
	}{{"COPY / HTTP/1.1\r\nHost: a.example\r\n\r\n", 400}, {"CONNECT ok.example:443 HTTP/1.1\r\n\r\nearly", 200}} {
		if _, err := io.WriteString(conn, c.request); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, &http.Request{Method: strings.Fields(c.request)[0]})
		if err != nil || resp.StatusCode != c.status {
			t.Fatalf("%q: %v, %v", c.request, resp, err)
		}
		if resp.StatusCode != http.StatusOK {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}
	_ = conn.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(in); err != nil || string(got) != "echo early" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestOriginFormIsRejected(t *testing.T) {
	s, client := start(t, time.Second)
	(&upstream{client: client}).attach(t)
	for _, request := range []string{"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n", "GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"} {
		if got := exchange(t, s.cfg.Proxy, request); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
			t.Errorf("%q: %q", request, got)
		}
	}
	if got := exchange(t, s.cfg.Proxy, "\x04\x01\x00\x50\x01\x02\x03\x04\x00"); got != "" {
		t.Errorf("SOCKS4: %q", got)
	}
}

// A server that attaches decides about the next request, though the connection of the
// last one is open.
func TestNewServerDecidesAboutTheNextRequest(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "content") }))
	defer web.Close()
	s, client := start(t, time.Second)
	proxy := &url.URL{Scheme: "http", Host: s.cfg.Proxy}
	get := func() (int, string) {
		t.Helper()
		program := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}}
		resp, err := program.Get("http://a.example/")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	first := &upstream{client: client, dials: map[string]string{"a.example:80": web.Listener.Addr().String()}}
	first.attach(t)
	for range 2 {
		if status, body := get(); status != http.StatusOK || body != "content" {
			t.Fatal(status, body)
		}
	}
	second := &upstream{client: client}
	second.attach(t)
	if status, body := get(); status != http.StatusForbidden {
		t.Errorf("the new server was not asked: %d %q", status, body)
	}
}

// A request with an absolute URL is forwarded to the URL's host, whatever its Host
// header is; each of a connection's requests is judged by itself.
func TestAbsoluteForm(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Keep-Alive", "timeout=5")
		_, _ = fmt.Fprintf(w, "%s %s %s %v %v", r.Method, r.Host, r.URL, r.Header.Get("Proxy-Authorization"), r.Header.Get("X-Forwarded-For"))
	}))
	defer web.Close()
	s, client := start(t, time.Second)
	u := &upstream{client: client, dials: map[string]string{"a.example:80": web.Listener.Addr().String(), "b.example:8080": web.Listener.Addr().String()}}
	u.attach(t)
	conn, err := net.Dial("tcp", s.cfg.Proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for _, c := range []struct {
		url    string
		status int
		want   string
	}{
		{"http://a.example/x?y=1", 200, "GET a.example /x?y=1  1.2.3.4"},
		{"http://no.example/", 403, "no rule for no.example:80\n"},
		{"http://b.example:8080/", 200, "GET b.example:8080 /  1.2.3.4"},
		{"http://a.example/again", 200, "GET a.example /again  1.2.3.4"},
	} {
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: lie.example\r\nProxy-Authorization: secret\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n", c.url); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != c.status || string(body) != c.want || resp.Header.Get("Keep-Alive") != "" {
			t.Errorf("%s: %d %q %v", c.url, resp.StatusCode, body, resp.Header)
		}
	}
}

// Go's own client works through the proxy with the variables of Env.
func TestGoClientUsesTheProxyOfEnv(t *testing.T) {
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	defer web.Close()
	s, client := start(t, time.Second)
	(&upstream{client: client, dials: map[string]string{"example.com:443": web.Listener.Addr().String()}}).attach(t)
	env := map[string]string{}
	for _, kv := range s.Env() {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	proxy, err := url.Parse(env["https_proxy"])
	if err != nil || env["NODE_USE_ENV_PROXY"] != "1" || env["HTTPS_PROXY"] != env["https_proxy"] {
		t.Fatal(env, err)
	}
	transport := web.Client().Transport.(*http.Transport).Clone()
	transport.Proxy = http.ProxyURL(proxy)
	defer transport.CloseIdleConnections()
	content := bytes.Repeat([]byte("0123456789"), 300_000)
	resp, err := (&http.Client{Transport: transport}).Post("https://example.com/", "", bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes: %v", len(got), err)
	}
}

// Without a server a connection waits for one for a bounded time.
func TestConnectionWaitsABoundedTimeForAServer(t *testing.T) {
	s, client := start(t, 10*time.Millisecond)
	got := exchange(t, s.cfg.Proxy, "CONNECT ok.example:443 HTTP/1.1\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 502 no server carries") {
		t.Errorf("got %q", got)
	}
	u := &upstream{client: client, dials: map[string]string{"ok.example:443": echo(t)}}
	u.attach(t)
	if got := exchange(t, s.cfg.Proxy, "CONNECT ok.example:443 HTTP/1.1\r\n\r\n"); !strings.HasSuffix(got, "echo ") {
		t.Errorf("with a server: %q", got)
	}
}

// A server that does not answer an announced connection delays no other, and the program
// gets an answer after a bounded time. What comes then is for nobody.
func TestAnnouncedConnectionWaitsABoundedTimeForItsAnswer(t *testing.T) {
	s, client := start(t, time.Second)
	s.servers.dialTime = time.Second
	u := &upstream{client: client, dials: map[string]string{"ok.example:443": echo(t), "silent.example:443": noAnswer}}
	u.attach(t)
	silent := make(chan string, 1)
	go func() { silent <- exchange(t, s.cfg.Proxy, "CONNECT silent.example:443 HTTP/1.1\r\n\r\n") }()
	for announced := false; ; {
		if got := exchange(t, s.cfg.Proxy, "CONNECT ok.example:443 HTTP/1.1\r\n\r\nx"); !strings.HasSuffix(got, "echo x") {
			t.Fatalf("another connection: %q", got)
		}
		if announced {
			break
		}
		u.mu.Lock()
		announced = slices.Contains(u.asked, "silent.example:443")
		u.mu.Unlock()
	}
	if got := <-silent; !strings.HasPrefix(got, "HTTP/1.1 502 silent.example did not answer within 1s") {
		t.Errorf("got %q", got)
	}
	s.servers.mu.Lock()
	left, last := len(s.servers.pending), s.servers.nextID
	s.servers.mu.Unlock()
	if left != 0 {
		t.Errorf("%d connections still wait", left)
	}
	for id := uint64(1); id <= last; id++ {
		late, err := client.CarryEgress(t.Context())
		if err == nil {
			err = late.Send(&agentv1.CarryEgressRequest{Payload: &agentv1.CarryEgressRequest_ConnectionId{ConnectionId: id}})
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := late.Recv(); status.Code(err) != codes.Canceled {
			t.Errorf("the late stream of %d: %v", id, err)
		}
	}
}

// When the server goes, its connections are reset, and the next server takes new
// ones.
func TestConnectionsAreResetWhenTheServerGoes(t *testing.T) {
	s, client := start(t, 10*time.Second)
	u := &upstream{client: client, dials: map[string]string{"ok.example:443": echo(t)}}
	detach := u.attach(t)
	conn, err := net.Dial("tcp", s.cfg.Proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "CONNECT ok.example:443 HTTP/1.1\r\n\r\n")
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatal(line, err)
	}
	detach()
	if _, err := io.ReadAll(conn); err == nil {
		t.Error("the connection ended in order")
	}
	answer := make(chan string)
	go func() { answer <- exchange(t, s.cfg.Proxy, "CONNECT ok.example:443 HTTP/1.1\r\n\r\nx") }()
	(&upstream{client: client, dials: u.dials}).attach(t)
	if got := <-answer; !strings.HasSuffix(got, "echo x") {
		t.Errorf("the next server: %q", got)
	}
}

func TestDisabled(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.AcceptEgress(nil); err == nil || len(s.Env()) > 0 {
		t.Errorf("%v %v", err, s.Env())
	}
}
