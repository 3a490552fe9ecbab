package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// stamp is Requests that adds a secret and removes it from answers.
type stamp struct{}

func (stamp) Request(r *http.Request, encrypted bool) error {
	if !encrypted {
		return errors.New("use https")
	}
	if r.URL.Path == "/forbidden" {
		return errors.New("the path is not allowed")
	}
	r.Header.Set("Authorization", "Bearer hidden")
	return nil
}

func (stamp) Response(header http.Header) {
	for _, values := range header {
		for i := range values {
			values[i] = strings.ReplaceAll(values[i], "hidden", "[redacted]")
		}
	}
}

// intercepted starts an upstream of TLS with a certificate for example.com, and
// returns how to open intercepted connections to it.
type intercepted struct {
	dialer    *Dialer
	policy    *Policy
	target    Target
	authority *Authority
	requests  Requests
	roots     *x509.CertPool // what the program trusts
}

func newIntercepted(t testing.TB, handler http.Handler) *intercepted {
	t.Helper()
	upstream := httptest.NewUnstartedServer(handler)
	upstream.EnableHTTP2 = true
	upstream.StartTLS()
	t.Cleanup(upstream.Close)
	authority, err := NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	roots, upstreams := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	upstreams.AddCert(upstream.Certificate())
	port := uint32(netip.MustParseAddrPort(upstream.Listener.Addr().String()).Port())
	return &intercepted{
		dialer:    &Dialer{Resolver: names{"example.com": {"127.0.0.1"}, "other.test": {"127.0.0.1"}}, Roots: upstreams},
		policy:    compile(t, template(at(hosts("*"), port), at(cidrs("127.0.0.0/8"), port))),
		target:    parse(t, "example.com", port),
		authority: authority, requests: stamp{}, roots: roots,
	}
}

func (i *intercepted) open(t testing.TB) (*net.TCPConn, <-chan error) {
	t.Helper()
	conn, err := i.dialer.Open(t.Context(), i.policy, i.target)
	if err != nil {
		t.Fatal(err)
	}
	conn.Intercept(i.authority, i.requests)
	near, client := pair(t)
	return near, run(t, conn, client)
}

// client returns a client whose connections are intercepted.
func (i *intercepted) client(t testing.TB, http2 bool) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	transport := &http.Transport{
		Protocols:       &protocols,
		TLSClientConfig: &tls.Config{RootCAs: i.roots},
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			near, _ := i.open(t)
			return near, nil
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func TestIntercept(t *testing.T) {
	i := newIntercepted(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Echo", r.Header.Get("Authorization"))
		w.Header().Set("Trailer", "Echo-At-End")
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "https://other.test/", http.StatusFound)
			return
		}
		fmt.Fprintf(w, "%s %s %s %t %s", r.Proto, r.Method, r.URL, r.Header.Get("Authorization") == "Bearer hidden", body)
		w.Header().Set("Echo-At-End", r.Header.Get("Authorization"))
	}))
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP/2 %t", http2), func(t *testing.T) {
			client := i.client(t, http2)
			proto := "HTTP/1.1"
			if http2 {
				proto = "HTTP/2.0"
			}
			for range 2 {
				response, err := client.Post("https://"+i.target.String()+"/a?b", "text/plain", strings.NewReader("body"))
				if err != nil {
					t.Fatal(err)
				}
				got, _ := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if string(got) != proto+" POST /a?b true body" || response.Header.Get("Echo") != "Bearer [redacted]" || response.Trailer.Get("Echo-At-End") != "Bearer [redacted]" {
					t.Errorf("got %s, %v, %v", got, response.Header, response.Trailer)
				}
			}
			for path, status := range map[string]int{"/forbidden": 403, "/away": 302} {
				response, err := client.Get("https://" + i.target.String() + path)
				if err != nil {
					t.Fatal(err)
				}
				_ = response.Body.Close()
				if response.StatusCode != status {
					t.Errorf("%s: got %s", path, response.Status)
				}
			}
		})
	}
}

func TestInterceptVerifiesTheUpstream(t *testing.T) {
	i := newIntercepted(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the upstream got a request") }))
	i.target = parse(t, "other.test", uint32(i.target.Port()))
	response, err := i.client(t, false).Get("https://" + i.target.String() + "/")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusBadGateway || !strings.Contains(string(body), "certificate") {
		t.Errorf("got %s %s", response.Status, body)
	}
}

func TestInterceptRefusesOtherProtocols(t *testing.T) {
	i := newIntercepted(t, http.NotFoundHandler())
	for first, want := range map[string]Reason{
		"SSH-2.0-x\r\n":    ReasonProtocol,
		"\x00\x00\x00\x08": ReasonProtocol,
		"GET / HTTP/1.1\r\nHost: " + i.target.String() + "\r\n\r\n": ReasonRequest,
		string(hello(t, &tls.Config{ServerName: "other.test"})):     ReasonServerName,
	} {
		near, done := i.open(t)
		send(t, near, first)
		_ = near.CloseWrite()
		_, _ = io.Copy(io.Discard, near)
		var denied *Denied
		if err := wait(t, done); !errors.As(err, &denied) || denied.Reason != want {
			t.Errorf("%q: got %v, want %s", first, err, want)
		}
	}
}

func TestInterceptUpgrade(t *testing.T) {
	i := newIntercepted(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nEcho: %s\r\n\r\n", r.Header.Get("Authorization"))
		_, _ = io.Copy(conn, buffered)
	}))
	near, _ := i.open(t)
	conn := tls.Client(near, &tls.Config{RootCAs: i.roots, ServerName: "example.com"})
	send(t, conn, "GET / HTTP/1.1\r\nHost: "+i.target.String()+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != 101 || response.Header.Get("Echo") != "Bearer [redacted]" {
		t.Fatalf("got %v, %v", response, err)
	}
	send(t, conn, "frames")
	expect(t, reader, "frames")
}

func TestAuthority(t *testing.T) {
	made, err := NewAuthority("thread-1\n")
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := made.Encode()
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := LoadAuthority(encoded)
	if err != nil || !bytes.Equal(loaded.PEM(), made.PEM()) {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(made.PEM())
	for n := range 2 * maxLeaves {
		host := fmt.Sprintf("host%d.example", n%(maxLeaves+8))
		certificate, err := loaded.leafFor(host)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := certificate.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			t.Fatal(err)
		}
		again, err := loaded.leafFor(host)
		if err != nil || again != certificate {
			t.Fatalf("a second certificate, %v", err)
		}
	}
	if len(loaded.leaves) != maxLeaves || loaded.recent.Len() != maxLeaves {
		t.Errorf("%d certificates are kept", len(loaded.leaves))
	}
	if certificate, _ := loaded.leafFor("a.example"); certificate.Leaf.IsCA || certificate.Leaf.VerifyHostname("b.example") == nil {
		t.Error("a leaf is valid for another host, or signs")
	}
	other, err := NewAuthority("other")
	if err != nil {
		t.Fatal(err)
	}
	otherEncoded, err := other.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, broken := range map[string][]byte{
		"empty": nil, "no key": made.PEM(), "cut": encoded[:len(encoded)-40], "more": append(bytes.Clone(encoded), 'x'),
		"another's key": append(made.PEM(), otherEncoded[len(other.PEM()):]...),
	} {
		if _, err := LoadAuthority(broken); err == nil {
			t.Errorf("%s is loaded", name)
		}
	}
}
