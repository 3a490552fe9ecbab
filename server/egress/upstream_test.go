package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
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

func (c *counted) Put(r *http.Request, host string, encrypted bool, given, all []Secret) (func(http.Header), error) {
	redact, err := c.Secrets.Put(r, host, encrypted, given, all)
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
		DialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil },
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
		client.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) { return near, nil }
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

// TestApplyToRunningRequests: new rules that do not allow a request, or give it another
// secret, do not leave it running, be it upgraded or its response a stream.
func TestApplyToRunningRequests(t *testing.T) {
	i := newIntercepted(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if r.Header.Get("Upgrade") == "" {
			_ = control.Flush()
			<-r.Context().Done()
			return
		}
		conn, buffered, err := control.Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(buffered, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = buffered.Flush()
		_, _ = io.Copy(conn, buffered)
	}))
	port := uint32(i.target.port)
	with := func(rule *sandboxv1.EgressRule) *Policy {
		return compile(t, template(at(rule, port), at(cidrs("127.0.0.0/8"), port)))
	}
	i.policy = with(withSecret(limited(hosts("*"), []string{"GET"}, "/a/*", "/b/*"), "token"))
	narrower := map[string]*Policy{
		"another path":   with(withSecret(limited(hosts("*"), []string{"GET"}, "/b/*"), "token")),
		"another method": with(withSecret(limited(hosts("*"), []string{"POST"}, "/a/*"), "token")),
		"another secret": with(withSecret(limited(hosts("*"), []string{"GET"}, "/a/*"), "other")),
		"no secret":      with(hosts("*")),
		"nothing":        nil,
	}
	for name, headers := range map[string]string{"a stream": "", "an upgrade": "Connection: Upgrade\r\nUpgrade: websocket\r\n"} {
		for why, policy := range narrower {
			t.Run(name+", "+why, func(t *testing.T) {
				upstream, err := i.dialer.Open(t.Context(), i.policy, i.target)
				if err != nil {
					t.Fatal(err)
				}
				upstream.Intercept(func() (*Authority, error) { return i.authority, nil }, i.secrets)
				near, client := pair(t)
				done := run(t, upstream, client)
				conn := tls.Client(near, &tls.Config{RootCAs: i.roots, ServerName: "example.com"})
				send(t, conn, "GET /a/x HTTP/1.1\r\nHost: "+i.target.String()+"\r\n"+headers+"\r\n")
				if response, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || response.StatusCode >= 400 {
					t.Fatalf("got %v, %v", response, err)
				}
				if err := upstream.Apply(with(withSecret(limited(hosts("*"), []string{"GET"}, "/a/*"), "token"))); err != nil {
					t.Errorf("rules that allow it: %v", err)
				}
				var denied *Denied
				if err := upstream.Apply(policy); !errors.As(err, &denied) {
					t.Errorf("got %v", err)
				}
				_ = upstream.Close() // as Apply's caller does
				_ = wait(t, done)
				if len(upstream.requests.requests) > 0 {
					t.Error("the request counts after its end")
				}
			})
		}
	}
}
