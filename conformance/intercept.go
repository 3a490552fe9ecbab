package conformance

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// interceptCases are those of rules for which the server ends TLS.
var interceptCases = []Case{
	{Name: "C29_methods_and_paths", Group: groupNetwork, proxy: true, run: methodsAndPaths},
	{Name: "C30_authority_of_one_sandbox", Group: groupNetwork, proxy: true, run: authorityOfOneSandbox},
	{Name: "C30_upstream_is_verified", Group: groupNetwork, proxy: true, run: upstreamIsVerified},
	{Name: "C30_secret_stays_outside", Group: groupNetwork, proxy: true, run: secretStaysOutside},
}

// visits are the requests that reached an upstream.
type visits struct {
	mu  sync.Mutex
	all []*http.Request
}

func (v *visits) add(r *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = append(v.all, r)
}

// take returns the requests and forgets them.
func (v *visits) take() []*http.Request {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := v.all
	v.all = nil
	return all
}

// interceptedUpstream serves over TLS with the certificate that the server trusts. It
// returns a rule for the upstream, another one for its address, and a URL without a path.
func (s *Suite) interceptedUpstream(t T, handler http.HandlerFunc) (rule, address *sandboxv1.EgressRule, url string) {
	t.Helper()
	if s.opts.UpstreamCertificate == nil {
		t.Skipf("no certificate was given with which this suite may be the upstream of connections whose TLS the server ends")
	}
	host, port := s.serveUpstream(t, s.opts.UpstreamCertificate, handler)
	rule, address = limitedRules(host, port)
	return rule, address, "https://" + net.JoinHostPort(host, port)
}

// limitedRules returns a rule for GET requests to the upstream, and one for its address.
func limitedRules(host, port string) (rule, address *sandboxv1.EgressRule) {
	return &sandboxv1.EgressRule{Hosts: []string{host}, Ports: upstreamPort(port), Methods: []string{http.MethodGet}},
		&sandboxv1.EgressRule{Cidrs: []string{"127.0.0.0/8"}, Ports: upstreamPort(port)}
}

// methodsAndPaths: requests that the rule has reach the upstream, others get 403 with
// the missing rule.
func methodsAndPaths(ctx context.Context, t T, s *Suite) {
	var came visits
	rule, address, url := s.interceptedUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		came.add(r)
		_, _ = fmt.Fprintf(w, "upstream got %s %s", r.Method, r.URL.Path)
	})
	rule.Paths = []string{"/allowed/*", "/one"}
	box, _ := s.networked(ctx, t, rule, address)
	missing := func(method, path string) string {
		return fmt.Sprintf(`it needs hosts: [%q], ports: [%d], methods: [%q], paths: [%q]`, rule.GetHosts()[0], rule.GetPorts()[0], method, path)
	}
	box.try(ctx, t,
		attempt{"request=GET " + url + "/allowed/a", "200 OK upstream got GET /allowed/a"},
		attempt{"bypass=GET " + url + "/allowed/b", "200 OK upstream got GET /allowed/b"},
		attempt{"request=GET " + url + "/one?more=1", "200 OK upstream got GET /one"},
	)
	if n := len(came.take()); n != 3 {
		t.Errorf("%d of 3 requests reached the upstream", n)
	}
	box.try(ctx, t,
		attempt{"request=POST " + url + "/allowed/a", "403 Forbidden "}, attempt{"request=POST " + url + "/allowed/a", missing("POST", "/allowed/a")},
		attempt{"request=GET " + url + "/other", "403 Forbidden "}, attempt{"request=GET " + url + "/other", missing("GET", "/other")},
		attempt{"bypass=DELETE " + url + "/one", missing("DELETE", "/one")},
		attempt{"request=HEAD " + url + "/one", "403 Forbidden "}, attempt{"request=GET " + url + "/one/more", "403 Forbidden "},
		attempt{"request=GET " + url + "/allowed/../other", "403 Forbidden "}, attempt{"request=GET " + url + "/allowed/%2e%2e/other", "403 Forbidden "},
		attempt{"request=GET " + url + "/allowed//a", "403 Forbidden "}, attempt{"request=GET " + url + "/allowed/a%2fb", "403 Forbidden "},
		// Without TLS the rule is the same.
		attempt{"request=GET " + strings.Replace(url, "https", "http", 1) + "/other", missing("GET", "/other")},
		// What is no HTTP does not pass, nor does another name.
		attempt{"tls=" + strings.TrimPrefix(url, "https://") + ",evil.example", refused},
	)
	for _, r := range came.take() {
		t.Errorf("%s %s reached the upstream", r.Method, r.URL)
	}
}

// sameBundle prints the variables that do not name the file of SSL_CERT_FILE.
const sameBundle = `for v in CURL_CA_BUNDLE REQUESTS_CA_BUNDLE PIP_CERT GIT_SSL_CAINFO AWS_CA_BUNDLE \
	CARGO_HTTP_CAINFO GRPC_DEFAULT_SSL_ROOTS_FILE_PATH BUNDLE_SSL_CA_CERT NIX_SSL_CERT_FILE; do
	eval "f=\$$v"; [ "$f" = "$SSL_CERT_FILE" ] || echo "$v"
done`

// authority returns the certificate of the sandbox's own authority, and all that its
// commands trust.
func (s Sandbox) authority(ctx context.Context, t T) (own, all string) {
	t.Helper()
	read := func(variable string) string {
		r := s.sh(ctx, t, `cat "$`+variable+`"`)
		if r.code() != 0 {
			t.Fatalf("%s: %v", variable, r)
		}
		return r.stdout
	}
	own = read("NODE_EXTRA_CA_CERTS")
	block, rest := pem.Decode([]byte(own))
	if block == nil || block.Type != "CERTIFICATE" || len(strings.TrimSpace(string(rest))) > 0 {
		t.Fatalf("NODE_EXTRA_CA_CERTS names a file with %s", brief(own))
	}
	if certificate, err := x509.ParseCertificate(block.Bytes); err != nil || !certificate.IsCA {
		t.Errorf("the sandbox's authority: %v", err)
	}
	if all = read("SSL_CERT_FILE"); !strings.Contains(all, strings.TrimSpace(own)) {
		t.Errorf("the file of SSL_CERT_FILE lacks the sandbox's authority")
	}
	if others := s.sh(ctx, t, sameBundle).stdout; others != "" {
		t.Errorf("these variables do not name the file of SSL_CERT_FILE: %s", others)
	}
	return own, all
}

// authorityOfOneSandbox: the commands of a sandbox trust its authority, and those of
// another do not.
func authorityOfOneSandbox(ctx context.Context, t T, s *Suite) {
	rule, address, url := s.interceptedUpstream(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "upstream") })
	first, made := s.networked(ctx, t, rule, address)
	second, _ := s.networked(ctx, t, rule, address)
	for _, box := range []Sandbox{first, second} {
		box.try(ctx, t, attempt{"request=GET " + url, "200 OK upstream"})
	}
	own, all := first.authority(ctx, t)
	other, others := second.authority(ctx, t)
	if own == other || strings.Contains(others, strings.TrimSpace(own)) {
		t.Errorf("another sandbox has the same authority")
	}
	if r := second.upload(ctx, t, file{second.dir + "/other.pem", []byte(all)})[0]; r.GetError() != nil {
		t.Fatalf("upload: %v", r)
	}
	got := second.results(ctx, t, "SSL_CERT_FILE=$PWD/other.pem", "request=GET "+url)[0]
	if !strings.Contains(got, "signed by unknown authority") {
		t.Errorf("with the authorities of another sandbox: got %q", got)
	}
	if r := first.sh(ctx, t, `grep -l -- "^-----BEGIN [A-Z ]*PRIVATE KEY-----" "${SSL_CERT_FILE%/*}"/*`); r.stdout != "" {
		t.Errorf("a private key is in %s", r.stdout)
	}
	// Where no rule needs it, nothing is trusted.
	bundle := strings.TrimSpace(first.sh(ctx, t, `echo "$SSL_CERT_FILE"`).stdout)
	if _, err := s.client.Update(ctx, made.ID(), sandgate.UpdateRequest{Network: &sandgate.Network{Allow: []*sandboxv1.EgressRule{address}}}); err != nil {
		t.Fatalf("update: %v", err)
	}
	if r := first.sh(ctx, t, "env | grep -F '="+bundle+"'"); r.stdout != "" {
		t.Errorf("without such a rule, a command has %s", r.stdout)
	}
}

// upstreamIsVerified: a request does not reach an upstream whose certificate the server
// does not trust.
func upstreamIsVerified(ctx context.Context, t T, s *Suite) {
	host, port := s.upstreamAddress(t)
	var came visits
	s.serveUpstream(t, selfSigned(t, host), func(_ http.ResponseWriter, r *http.Request) { came.add(r) })
	rule, address := limitedRules(host, port)
	box, _ := s.networked(ctx, t, rule, address)
	box.try(ctx, t, attempt{"request=GET https://" + net.JoinHostPort(host, port), "502 Bad Gateway "})
	if n := len(came.take()); n > 0 {
		t.Errorf("%d requests reached an upstream that the server cannot verify", n)
	}
}

// selfSigned returns a certificate that nobody trusts.
func selfSigned(t T, host string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("%v", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// secretFor returns the name of a secret that the server sends to a host.
func (s *Suite) secretFor(t T, host string) string {
	t.Helper()
	for _, secret := range s.info.GetSecrets() {
		if slices.ContainsFunc(secret.GetHosts(), func(pattern string) bool {
			suffix, below := strings.CutPrefix(pattern, "*")
			return pattern == host || below && strings.HasSuffix(host, suffix)
		}) {
			return secret.GetName()
		}
	}
	t.Skipf("the server has no secret that it may send to %s", host)
	return ""
}

// secretStaysOutside: the server puts a secret into the requests of one sandbox. It is
// nowhere inside, no other sandbox uses it, and it goes to no other host.
func secretStaysOutside(ctx context.Context, t T, s *Suite) {
	var came visits
	rule, address, url := s.interceptedUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		came.add(r)
		w.Header().Set("Echo", r.Header.Get("Authorization"))
		if r.URL.Path == "/away" {
			_, port, _ := strings.Cut(r.Host, ":")
			http.Redirect(w, r, "https://127.0.0.1:"+port+"/landed", http.StatusFound)
			return
		}
		_, _ = fmt.Fprint(w, "upstream")
	})
	host := rule.GetHosts()[0]
	with := &sandboxv1.EgressRule{Hosts: rule.GetHosts(), Ports: rule.GetPorts(), Secret: &sandboxv1.EgressSecret{Name: s.secretFor(t, host)}}
	box, _ := s.networked(ctx, t, with, address)
	without, _ := s.networked(ctx, t, rule, address)

	// The upstream shows what the secret is.
	box.try(ctx, t, attempt{"request=GET " + url, "200 OK upstream"})
	requests := came.take()
	if len(requests) != 1 {
		t.Fatalf("%d requests reached the upstream", len(requests))
	}
	secret, ok := strings.CutPrefix(requests[0].Header.Get("Authorization"), "Bearer ")
	if !ok || len(secret) < 8 {
		t.Fatalf("the upstream got no secret: its Authorization has %d bytes", len(secret))
	}

	// The response has it neither, nor has the sandbox.
	for i, got := range box.results(ctx, t, "", "request=GET "+url+"/echo", "follow=GET "+url+"/away", "bypass=GET "+url) {
		shown := strings.ReplaceAll(got, secret, "SECRET") // the log never has it
		if shown != got || !strings.Contains(got, "200 OK upstream") {
			t.Errorf("response %d: the secret is in it, or it is no answer of the upstream: %q", i, shown)
		}
		if i == 0 && !strings.Contains(got, "Echo: [redacted]") {
			t.Errorf("the header that returns the secret is not redacted: %q", shown)
		}
	}
	landed := false
	for _, r := range came.take() {
		if r.URL.Path != "/landed" {
			continue
		}
		landed = true
		if strings.Contains(fmt.Sprint(r.Header), secret) {
			t.Errorf("after a redirect to another host, the request has the secret")
		}
	}
	if !landed {
		t.Errorf("the redirect was not followed")
	}
	box.try(ctx, t, attempt{"request=GET " + strings.Replace(url, "https", "http", 1), "403 Forbidden "})
	box.assertNowhere(ctx, t, secret)

	without.try(ctx, t, attempt{"request=GET " + url, "200 OK upstream"})
	for _, r := range came.take() {
		if strings.Contains(fmt.Sprint(r.Header), secret) {
			t.Errorf("a request without TLS, or of a sandbox without a rule for the secret, has it")
		}
	}
}

// assertNowhere searches the sandbox for a secret. The search must find a text that is
// in a file and in an environment.
func (s Sandbox) assertNowhere(ctx context.Context, t T, secret string) {
	t.Helper()
	const marker = "conformance-marker-5f0c2e9d"
	if r := s.upload(ctx, t, file{s.dir + "/marked", []byte("before " + marker)})[0]; r.GetError() != nil {
		t.Fatalf("upload: %v", r)
	}
	got := s.results(ctx, t, "MARKER="+marker, "find="+inverted(marker), "find="+inverted(secret))
	if !strings.Contains(got[0], "/environ") || !strings.Contains(got[0], "marked") {
		t.Errorf("the search did not find what is there: %q", got[0])
	}
	if got[1] != "nowhere" {
		t.Errorf("the secret is in %s", got[1])
	}
}

// inverted is how conformance/goprogram takes a text to find, such that the sandbox
// never has it.
func inverted(text string) string {
	b := []byte(text)
	for i := range b {
		b[i] ^= 0xff
	}
	return hex.EncodeToString(b)
}
