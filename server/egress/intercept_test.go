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

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// stamp is Secrets that adds a secret and removes it from answers.
type stamp struct{}

func (stamp) Put(r *http.Request, _ string, encrypted bool, secrets, all []Secret) (func(http.Header), error) {
	if !encrypted {
		return nil, errors.New("use https")
	}
	if len(secrets) != 1 || len(all) != 1 {
		return nil, fmt.Errorf("%v of %v", secrets, all)
	}
	if r.URL.Path == "/forbidden" {
		return nil, errors.New("the path is not allowed")
	}
	r.Header.Set(secrets[0].Header, secrets[0].Prefix+"hidden")
	return func(header http.Header) {
		for _, values := range header {
			for i := range values {
				values[i] = strings.ReplaceAll(values[i], "hidden", "[redacted]")
			}
		}
	}, nil
}

// withSecret adds a secret to a rule.
func withSecret(r *sandboxv1.EgressRule, name string) *sandboxv1.EgressRule {
	r.Secret = &sandboxv1.EgressSecret{Name: name}
	return r
}

// testAuthority returns the authority of a sandbox.
func testAuthority(t testing.TB, id string) *Authority {
	t.Helper()
	all, err := NewAuthorities([]byte("a secret of the server"))
	if err != nil {
		t.Fatal(err)
	}
	authority, err := all.For("tenant", id, "incarnation")
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

// intercepted starts an upstream of TLS with a certificate for example.com, and
// returns how to open intercepted connections to it.
type intercepted struct {
	dialer    *Dialer
	policy    *Policy
	target    Target
	authority *Authority
	secrets   Secrets
	roots     *x509.CertPool // what the program trusts
}

func newIntercepted(t testing.TB, handler http.Handler) *intercepted {
	t.Helper()
	upstream := httptest.NewUnstartedServer(handler)
	upstream.EnableHTTP2 = true
	upstream.StartTLS()
	t.Cleanup(upstream.Close)
	authority := testAuthority(t, "test")
	roots, upstreams := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	upstreams.AddCert(upstream.Certificate())
	port := uint32(netip.MustParseAddrPort(upstream.Listener.Addr().String()).Port())
	return &intercepted{
		dialer:    &Dialer{Resolver: names{"example.com": {"127.0.0.1"}, "other.test": {"127.0.0.1"}}, Roots: upstreams},
		policy:    compile(t, template(withSecret(at(hosts("*"), port), "token"), at(cidrs("127.0.0.0/8"), port))),
		target:    parse(t, "example.com", port),
		authority: authority, secrets: stamp{}, roots: roots,
	}
}

func (i *intercepted) open(t testing.TB) (*net.TCPConn, <-chan error) {
	t.Helper()
	conn, err := i.dialer.Open(t.Context(), i.policy, i.target)
	if err != nil {
		t.Fatal(err)
	}
	if i.authority != nil {
		conn.Intercept(func() (*Authority, error) { return i.authority, nil }, i.secrets)
	}
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
	i.target = parse(t, "other.test", uint32(i.target.port))
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
	made, again := testAuthority(t, "thread-1"), testAuthority(t, "thread-1")
	if !bytes.Equal(again.PEM(), made.PEM()) {
		t.Error("the certificate is not the same at each time")
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(made.PEM())
	for n := range 2 * maxLeaves {
		host := fmt.Sprintf("host%d.example", n%(maxLeaves+8))
		certificate, err := again.leafFor(host)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := certificate.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			t.Fatal(err)
		}
		second, err := again.leafFor(host)
		if err != nil || second != certificate {
			t.Fatalf("a second certificate, %v", err)
		}
	}
	if len(again.leaves) != maxLeaves || again.recent.Len() != maxLeaves {
		t.Errorf("%d certificates are kept", len(again.leaves))
	}
	certificate, _ := again.leafFor("a.example")
	if certificate.Leaf.IsCA || certificate.Leaf.VerifyHostname("b.example") == nil {
		t.Error("a leaf is valid for another host, or signs")
	}
	others := x509.NewCertPool()
	others.AppendCertsFromPEM(testAuthority(t, "thread-2").PEM())
	if _, err := certificate.Leaf.Verify(x509.VerifyOptions{Roots: others}); err == nil {
		t.Error("another sandbox trusts the certificate")
	}
}

// Names cannot be shifted from one part to the next, and old ones are forgotten.
func TestAuthorityNamesAreNotAmbiguous(t *testing.T) {
	if _, err := NewAuthorities([]byte("short")); err == nil {
		t.Error("a short secret")
	}
	all, err := NewAuthorities(bytes.Repeat([]byte("k"), minRootSecret))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, of := range [][3]string{{"a", "b", "c"}, {"ab", "", "c"}, {"a", "bc", ""}, {"a", "b", "d"}} {
		authority, err := all.For(of[0], of[1], of[2])
		if err != nil || seen[string(authority.PEM())] {
			t.Fatalf("%v: %v, or another's", of, err)
		}
		seen[string(authority.PEM())] = true
	}
	for n := range maxAuthorities + 8 {
		if _, err := all.For("a", "b", fmt.Sprint(n)); err != nil {
			t.Fatal(err)
		}
	}
	if len(all.recent) != maxAuthorities {
		t.Errorf("%d are kept", len(all.recent))
	}
}
