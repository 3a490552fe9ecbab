package egress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// seenRequests is an upstream's log: "METHOD HOST PATH AUTHORIZATION".
type seenRequests struct {
	mu   sync.Mutex
	list []string
}

func (s *seenRequests) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, strings.Join([]string{r.Method, r.Host, r.RequestURI, r.Header.Get("Authorization")}, " "))
	fmt.Fprintln(w, "ok", r.RequestURI)
}

func (s *seenRequests) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.list = nil }()
	return s.list
}

// onlyOK is a policy that puts a secret into GET and POST requests below /ok/.
func (i *intercepted) onlyOK(t testing.TB) {
	t.Helper()
	port := uint32(i.target.port)
	rule := withSecret(limited(hosts("example.com"), []string{"GET", "POST"}, "/ok/*"), "token")
	i.policy = compile(t, template(at(rule, port), at(cidrs("127.0.0.0/8"), port)))
}

// TestInterceptedRequestsReachOnlyTheAllowedName: whatever a program sends, the upstream gets requests for the
// asked name and the allowed paths only, each with the secret.
func TestInterceptedRequestsReachOnlyTheAllowedName(t *testing.T) {
	log := &seenRequests{}
	i := newIntercepted(t, log)
	i.onlyOK(t)
	host := i.target.String()
	const end = "\r\n\r\n"
	get := func(path string, headers ...string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n"
	}
	evil := get("/evil")
	cases := []string{
		// Another host.
		"GET /ok/a HTTP/1.1\r\nHost: other.test" + end,
		"GET /ok/a HTTP/1.1\r\nHost: " + host + "\r\nHost: other.test" + end,
		"GET /ok/a HTTP/1.1\r\nHost: example.com@other.test" + end,
		"GET /ok/a HTTP/1.1\r\nHost: example.com:1" + end,
		"GET /ok/a HTTP/1.1\r\nHost: other.test#" + host + end,
		"GET /ok/a HTTP/1.1\r\nHost:" + end,
		"GET /ok/a HTTP/1.1" + end,
		"GET /ok/a HTTP/1.0" + end,
		"GET https://other.test/ok/a HTTP/1.1\r\nHost: " + host + end,
		"GET https://user@other.test/ok/a HTTP/1.1\r\nHost: " + host + end,
		"GET x:http://other.test/ok/a HTTP/1.1\r\nHost: " + host + end,
		"GET //other.test/ok/a HTTP/1.1\r\nHost: " + host + end,
		"CONNECT other.test:443 HTTP/1.1\r\nHost: " + host + end,
		"CONNECT " + host + " HTTP/1.1\r\nHost: " + host + end,
		get("/ok/a") + "GET /ok/b HTTP/1.1\r\nHost: other.test" + end,
		// Another path or method.
		get("/evil"), get("/"), get("/ok"), get("/OK/a"), get("/ok/../evil"), get("/ok/%2e%2e/evil"), get("/ok/.%2E/evil"),
		get("/ok/..%2fevil"), get("/ok/..%5cevil"), get(`/ok/..\evil`), get("/ok/..;/evil"), get("/ok/%252e%252e/evil"),
		get("//ok/../evil"), get("/ok//../../evil"), get("/ok/a/./../../evil"), get("/ok/%00"), get("/ok/..%c0%afevil"), get("/ok/%c0%ae%c0%ae/evil"), get("/ok/..%e0%80%afevil"), get("/ok/;/../evil"), get("*"),
		get("/ok/a", "X-HTTP-Method-Override: DELETE"), get("/ok/a", "X_Http_Method_Override: DELETE"), get("/ok/a", "X-Original-URL: /evil"), get("/ok/a", "X-Rewrite-URL: /evil"),
		"DELETE /ok/a HTTP/1.1\r\nHost: " + host + end, "get /ok/a HTTP/1.1\r\nHost: " + host + end, "OPTIONS * HTTP/1.1\r\nHost: " + host + end,
		"TRACE /ok/a HTTP/1.1\r\nHost: " + host + end, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		// Two readings of one stream.
		"POST /ok/a HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + evil,
		"POST /ok/a HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n" + evil,
		"POST /ok/a HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding : chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n" + evil,
		"POST /ok/a HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + evil,
		"POST /ok/a HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + evil,
		"POST /ok/a HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + evil,
		"POST /ok/a HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n" + evil,
		"POST /ok/a HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: +5\r\n\r\n" + evil,
		"POST /ok/a HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 0x5\r\n\r\n" + evil,
		"POST /ok/a HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: -1\r\n\r\n" + evil,
		"POST /ok/a HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: chunked\r\n\r\n5;\n\r\nhello\r\n0\r\n\r\n" + evil,
		"POST /ok/a HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n" + evil,
		get("/ok/a", "X: y\rGET /evil HTTP/1.1"), get("/ok/a", "X: y\n\nGET /evil HTTP/1.1"), get("/ok/a", " folded: x"), get("/ok/a", "X\x00: y"),
		get("/ok/a\x20/evil"), get("/ok/a\t/evil"), "GET /ok/a\r\n\r\n", "GET  /evil HTTP/1.1\r\nHost: " + host + end,
		// Other protocols on the connection.
		get("/ok/a", "Connection: Upgrade", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__") + "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		get("/ok/a", "Connection: Upgrade", "Upgrade: TLS/1.2, HTTP/1.1") + evil,
		get("/ok/a", "Connection: Authorization"), get("/ok/a", "Connection: Host"), get("/ok/a", "Authorization: mine"),
	}
	allowed := 0
	for _, first := range cases {
		near, done := i.open(t)
		conn := tls.Client(near, &tls.Config{RootCAs: i.roots, ServerName: "example.com"})
		// An end of the input would cancel requests that are on their way.
		send(t, conn, first+get("/ok/last"))
		_ = near.SetReadDeadline(time.Now().Add(20 * time.Second))
		for answers := bufio.NewReader(conn); ; {
			if line, err := answers.ReadString('\n'); err != nil || strings.Contains(line, "/ok/last") {
				break
			}
		}
		_ = conn.CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
		_ = near.Close()
		_ = wait(t, done)
		for _, got := range log.take() {
			fields := strings.Split(got, " ")
			allowed++
			secret := fields[3] == "Bearer" && fields[4] == "hidden" || strings.Contains(first, "Connection: Authorization") && fields[3] == ""
			if fields[1] != host || !strings.HasPrefix(fields[2], "/ok/") || strings.Contains(fields[2], "..") || !slices.Contains([]string{"GET", "POST"}, fields[0]) || !secret {
				t.Errorf("%q: the upstream got %s", first, got)
			}
		}
	}
	if allowed == 0 {
		t.Error("no request was allowed")
	}
}

// TestInterceptedHTTP2IsForOneName: a connection of HTTP/2 carries requests for one name,
// also where the authority has another one.
func TestInterceptedHTTP2IsForOneName(t *testing.T) {
	log := &seenRequests{}
	i := newIntercepted(t, log)
	i.onlyOK(t)
	client := i.client(t, true)
	for _, name := range []string{"other.test", "other.test:443", "example.com:1", "example.com.other.test"} {
		request, err := http.NewRequest("GET", "https://"+i.target.String()+"/ok/a", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = name
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusMisdirectedRequest {
			t.Errorf("%s: %s", name, response.Status)
		}
	}
	if got := log.take(); len(got) > 0 {
		t.Errorf("the upstream got %v", got)
	}
}

// TestInterceptHostileUpstreams: an upstream cannot make the server hold much, or
// the program wait for ever.
func TestInterceptHostileUpstreams(t *testing.T) {
	var handler atomic.Pointer[http.HandlerFunc]
	i := newIntercepted(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*handler.Load())(w, r) }))
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		want  func(*http.Response, error) bool
	}{
		"a huge header": {func(w http.ResponseWriter, _ *http.Request) {
			for n := range 200 {
				w.Header().Set(fmt.Sprintf("X-%d", n), strings.Repeat("x", 1000))
			}
		}, func(r *http.Response, err error) bool { return err == nil && r.StatusCode == http.StatusBadGateway }},
		"an endless body": {func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					return
				}
			}
		}, func(r *http.Response, err error) bool {
			if err != nil {
				return false
			}
			n, _ := io.CopyN(io.Discard, r.Body, 10<<20)
			return n == 10<<20
		}},
	} {
		for _, http2 := range []bool{false, true} {
			handler.Store(&c.serve)
			response, err := i.client(t, http2).Get("https://" + i.target.String() + "/")
			if !c.want(response, err) {
				t.Errorf("%s, HTTP/2 %t: %v, %v", name, http2, response, err)
			}
			if err == nil {
				_ = response.Body.Close()
			}
		}
	}
}

// TestInterceptedBodiesStreamBothWays: bytes of a body pass both ways before the request or the
// response has ended, and trailers follow, as gRPC needs.
func TestInterceptedBodiesStreamBothWays(t *testing.T) {
	i := newIntercepted(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		control := http.NewResponseController(w)
		_ = control.EnableFullDuplex()
		lines := bufio.NewScanner(r.Body)
		_ = control.Flush()
		for lines.Scan() {
			fmt.Fprintf(w, "got %s\n", lines.Text())
			_ = control.Flush()
		}
		w.Header().Set("Grpc-Status", "0")
	}))
	body, program := io.Pipe()
	response, err := i.client(t, true).Post("https://"+i.target.String()+"/s/M", "application/grpc", body)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	reader := bufio.NewReader(response.Body)
	for n := range 3 {
		fmt.Fprintf(program, "message %d\n", n)
		if got, err := reader.ReadString('\n'); err != nil || got != fmt.Sprintf("got message %d\n", n) {
			t.Fatalf("%q, %v", got, err)
		}
	}
	_ = program.Close()
	if _, err := io.Copy(io.Discard, reader); err != nil || response.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("%v, %v", response.Trailer, err)
	}
}

// TestSecretsOfRequests: which secrets a request gets, of several rules and layers.
func TestSecretsOfRequests(t *testing.T) {
	in := func(rule *sandboxv1.EgressRule, s *sandboxv1.EgressSecret) *sandboxv1.EgressRule {
		rule.Secret = s
		return rule
	}
	policy := compile(t,
		template(
			in(hosts("*.example"), &sandboxv1.EgressSecret{Name: "theirs"}),
			in(hosts("*.example"), &sandboxv1.EgressSecret{Name: "key", Header: "x-key"}),
			hosts("free.test", "*.example"),
		),
		sandbox(
			in(limited(hosts("a.example"), []string{"POST"}, "/p/*"), &sandboxv1.EgressSecret{Name: "path", User: "git"}),
			in(hosts("a.example"), &sandboxv1.EgressSecret{Name: "mine"}),
			hosts("free.test", "a.example", "b.example"),
		),
	)
	for _, c := range []struct {
		host, method, path string
		want               []string
		denied             bool
	}{
		{"a.example", "GET", "/", []string{"mine Authorization Bearer ", "key X-Key "}, false},
		{"a.example", "POST", "/p/x", []string{"path Authorization ", "key X-Key "}, false},
		{"a.example", "POST", "/p/../x", nil, true}, // Which secret would it be?
		{"b.example", "GET", "/a%2fb", []string{"theirs Authorization Bearer ", "key X-Key "}, false},
		{"free.test", "GET", "/", nil, false},
	} {
		target := parse(t, c.host, 443)
		r, err := http.NewRequest(c.method, "https://"+c.host+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if denied := policy.checkRequest(target, r); (denied != nil) != c.denied {
			t.Errorf("%v: %v", c, denied)
		}
		var got []string
		for _, s := range policy.secrets(target, r) {
			got = append(got, s.Name+" "+s.Header+" "+s.Prefix)
		}
		if !c.denied && !slices.Equal(got, c.want) {
			t.Errorf("%v: got %q", c, got)
		}
		if policy.reads(target) != (c.host != "free.test") {
			t.Errorf("%v: read %t", c, policy.reads(target))
		}
	}
	for host, want := range map[string]int{"a.example": 4, "b.example": 2, "free.test": 0} {
		if got := policy.allSecrets(parse(t, host, 443)); len(got) != want {
			t.Errorf("%s: all secrets are %v", host, got)
		}
	}
	if err := policy.Check(parse(t, "b.example", 80)); err != nil {
		t.Errorf("a free rule's port: %v", err)
	}
	if policy.reads(parse(t, "a.example", 80)) {
		t.Error("port 80 is read, for which the rules with secrets are not")
	}
}
