package egress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestUpgradeEndsWithTheProgram: an upgraded connection ends when the program goes,
// also one that is not the first to the upstream, however silent that is.
func TestUpgradeEndsWithTheProgram(t *testing.T) {
	silent := make(chan struct{})
	defer close(silent)
	i := newIntercepted(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			w.Header().Set("Connection", "close")
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(buffered, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = buffered.Flush()
		<-silent
	}))
	const upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
	for name, c := range map[string]struct {
		headers []string
		end     func(conn *Conn, program *net.TCPConn)
	}{
		"the first, closed":  {[]string{upgrade}, func(conn *Conn, _ *net.TCPConn) { _ = conn.Close() }},
		"another, closed":    {[]string{"", "", upgrade}, func(conn *Conn, _ *net.TCPConn) { _ = conn.Close() }},
		"another, reset":     {[]string{"", upgrade}, func(_ *Conn, program *net.TCPConn) { _ = program.SetLinger(0); _ = program.Close() }},
		"the program broken": {[]string{"", upgrade}, func(_ *Conn, program *net.TCPConn) { _, _ = program.Write([]byte("no TLS\n")); _ = program.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			upstream, err := i.dialer.Open(t.Context(), i.policy, i.target)
			if err != nil {
				t.Fatal(err)
			}
			upstream.Intercept(func() (*Authority, error) { return i.authority, nil }, i.secrets)
			near, client := pair(t)
			done := run(t, upstream, client)
			conn := tls.Client(near, &tls.Config{RootCAs: i.roots, ServerName: "example.com"})
			reader := bufio.NewReader(conn)
			for _, header := range c.headers {
				send(t, conn, "GET / HTTP/1.1\r\nHost: "+i.target.String()+"\r\n"+header+"\r\n")
				response, err := http.ReadResponse(reader, nil)
				if err != nil || (response.StatusCode == http.StatusSwitchingProtocols) != (header != "") {
					t.Fatalf("got %v, %v", response, err)
				}
			}
			c.end(upstream, near)
			_ = wait(t, done)
		})
	}
}

// counted counts the requests that get a secret.
type counted struct {
	Secrets
	calls atomic.Int64
	all   chan struct{} // closed at the call that is the last
	last  int64
}

func (c *counted) Put(r *http.Request, host string, encrypted bool, secrets []Secret) (func(http.Header), error) {
	redact, err := c.Secrets.Put(r, host, encrypted, secrets)
	if c.calls.Add(1) == c.last {
		close(c.all)
	}
	return redact, err
}

// TestUpstreamsAreBounded: many requests on one connection of a program open few to
// the upstream, which end with it although they are still being opened.
func TestUpstreamsAreBounded(t *testing.T) {
	const requests = 90
	i := newIntercepted(t, http.NotFoundHandler())
	listener, err := net.Listen("tcp4", "127.0.0.1:0") // It accepts, and never answers.
	if err != nil {
		t.Fatal(err)
	}
	port := uint32(netip.MustParseAddrPort(listener.Addr().String()).Port())
	i.policy = compile(t, template(withSecret(at(hosts("*"), port), "token"), at(cidrs("127.0.0.0/8"), port)))
	i.target = parse(t, "example.com", port)
	secrets := &counted{Secrets: i.secrets, all: make(chan struct{}), last: requests}
	i.secrets = secrets
	var accepted atomic.Int64
	var open sync.WaitGroup
	open.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			open.Go(func() {
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			})
		}
	})

	near, done := i.open(t)
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	transport := &http.Transport{
		Protocols: &protocols, TLSClientConfig: &tls.Config{RootCAs: i.roots}, MaxConnsPerHost: 1,
		Dial: func(string, string) (net.Conn, error) { return near, nil },
	}
	var sent sync.WaitGroup
	for range requests {
		sent.Go(func() {
			request, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+i.target.String()+"/", nil)
			if err != nil {
				t.Error(err)
				return
			}
			if response, err := transport.RoundTrip(request); err == nil {
				_ = response.Body.Close()
			}
		})
	}
	select {
	case <-secrets.all:
	case <-time.After(20 * time.Second):
		t.Fatal("the requests did not come")
	}
	_ = near.SetLinger(0)
	_ = near.Close()
	sent.Wait()
	_ = wait(t, done)
	_ = listener.Close()
	open.Wait()
	if n := accepted.Load(); n == 0 || n > maxUpstreams {
		t.Errorf("%d connections", n)
	}
}

// TestUpstreamsAreReplaced: connections that the upstream ends do not count.
func TestUpstreamsAreReplaced(t *testing.T) {
	i := newIntercepted(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") }))
	for _, http2 := range []bool{false, true} {
		near, done := i.open(t)
		client := i.client(t, http2)
		client.Transport.(*http.Transport).DialContext = nil
		client.Transport.(*http.Transport).Dial = func(string, string) (net.Conn, error) { return near, nil }
		for n := range 3 * maxUpstreams {
			response, err := client.Get("https://" + i.target.String() + "/")
			if err != nil || response.StatusCode != http.StatusOK {
				t.Fatalf("HTTP/2 %t, request %d: %v, %v", http2, n, response, err)
			}
			_ = response.Body.Close()
		}
		client.CloseIdleConnections()
		_ = wait(t, done)
	}
}
