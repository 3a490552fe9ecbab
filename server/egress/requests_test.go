package egress

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// limited returns the rule with methods and paths.
func limited(rule *sandboxv1.EgressRule, methods []string, paths ...string) *sandboxv1.EgressRule {
	rule.Methods, rule.Paths = methods, paths
	return rule
}

func TestCheckRequest(t *testing.T) {
	get, post := []string{"GET"}, []string{"POST"}
	free := hosts("a.example")
	reads := limited(hosts("a.example"), get)
	repository := limited(hosts("*.example"), nil, "/team/app/*", "/login")
	for _, c := range []struct {
		name   string
		layers []Layer
		method string
		path   string
		header string
		want   string // a part of the error; empty: allowed
	}{
		{"no limit", []Layer{sandbox(free)}, "DELETE", "/..;/x", "", ""},
		{"a method", []Layer{sandbox(reads)}, "GET", "/x", "", ""},
		{"another method", []Layer{sandbox(reads)}, "POST", "/x", "", `no rule of the sandbox allows the request; it needs hosts: ["a.example"], ports: [443], methods: ["POST"], paths: ["/x"]`},
		{"a method in another case", []Layer{sandbox(reads)}, "get", "/x", "", "no rule"},
		{"a rule beside without limit", []Layer{sandbox(reads, free)}, "POST", "/x", "", ""},
		{"a path", []Layer{sandbox(repository)}, "POST", "/login", "", ""},
		{"a path below a pattern", []Layer{sandbox(repository)}, "GET", "/team/app/a/b", "", ""},
		{"a pattern's own path with a slash", []Layer{sandbox(repository)}, "GET", "/team/app/", "", ""},
		{"a pattern's own path", []Layer{sandbox(repository)}, "GET", "/team/app", "", "no rule"},
		{"a path that begins alike", []Layer{sandbox(repository)}, "GET", "/team/application", "", "no rule"},
		{"below an exact path", []Layer{sandbox(repository)}, "GET", "/login/x", "", "no rule"},
		{"a path in another case", []Layer{sandbox(repository)}, "GET", "/LOGIN", "", "no rule"},
		{"a path in escapes", []Layer{sandbox(repository)}, "GET", "/%6Cogin", "", ""},
		{"a query", []Layer{sandbox(repository)}, "GET", "/login?x=/../y", "", ""},
		{"dots", []Layer{sandbox(repository)}, "GET", "/team/app/../secret", "", `the path has`},
		{"escaped dots", []Layer{sandbox(repository)}, "GET", "/team/app/%2e%2E/secret", "", `the path has`},
		{"dots and a parameter", []Layer{sandbox(repository)}, "GET", "/team/app/..;/secret", "", `the path has`},
		{"dots twice escaped", []Layer{sandbox(repository)}, "GET", "/team/app/%252e%252e/secret", "", `the path has`},
		{"an escaped slash", []Layer{sandbox(repository)}, "GET", "/team/app/..%2fsecret", "", `the path has`},
		{"a slash of two bytes", []Layer{sandbox(repository)}, "GET", "/team/app/..%c0%afsecret", "", `the path has`},
		{"a backslash", []Layer{sandbox(repository)}, "GET", "/team/app/..%5csecret", "", `the path has`},
		{"two slashes", []Layer{sandbox(repository)}, "GET", "//team/app/x", "", `the path has`},
		{"another method in a header", []Layer{sandbox(reads)}, "GET", "/x", "X-HTTP-Method-Override", "would change the request's method"},
		{"another method in a header with underscores", []Layer{sandbox(reads)}, "GET", "/x", "X_HTTP_Method_Override", "would change the request's method"},
		{"another path in a header", []Layer{sandbox(repository)}, "GET", "/login", "X-Original-URL", "would change the request's path"},
		{"both layers", []Layer{template(reads), sandbox(limited(hosts("a.example"), nil, "/x"))}, "GET", "/x", "", ""},
		{"the template's method", []Layer{template(reads), sandbox(free)}, "POST", "/x", "", "no rule of the template"},
		{"the sandbox's path", []Layer{template(reads), sandbox(limited(hosts("a.example"), nil, "/x"))}, "GET", "/y", "", "no rule of the sandbox"},
		{"methods that exclude each other", []Layer{template(reads), sandbox(limited(hosts("a.example"), post))}, "GET", "/", "", "no rule of the sandbox"},
	} {
		t.Run(c.name, func(t *testing.T) {
			request, err := http.NewRequest(c.method, "https://a.example"+c.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.header != "" {
				request.Header.Set(c.header, "x")
			}
			denied := compile(t, c.layers...).checkRequest(parse(t, "a.example", 443), request)
			switch {
			case c.want == "" && denied != nil:
				t.Error(denied)
			case c.want != "" && (denied == nil || denied.Reason != ReasonRequest || !strings.Contains(denied.Error(), c.want)):
				t.Errorf("got %v, want %s", denied, c.want)
			}
		})
	}
}

func TestLimitedRulesAllowNoAddress(t *testing.T) {
	rule := limited(hosts("a.example"), []string{"GET"})
	rule.Cidrs = []string{"10.0.0.0/8"}
	policy := compile(t, template(rule))
	if err := policy.CheckAddr(parse(t, "a.example", 443), netip.MustParseAddr("10.0.0.1")); err != nil {
		t.Errorf("the name: %v", err)
	}
	if err := policy.Check(parse(t, "10.0.0.1", 443)); err == nil {
		t.Error("the address is allowed without a look at its requests")
	}
}

func TestCompileRefusesRequests(t *testing.T) {
	for field, rule := range map[string]*sandboxv1.EgressRule{
		"[0].methods[0]": limited(hosts("a.example"), []string{"get"}),
		"[0].methods[1]": limited(hosts("a.example"), []string{"GET", ""}),
		"[0].paths[0]":   limited(hosts("a.example"), nil, "a"),
		"[0].paths[1]":   limited(hosts("a.example"), nil, "/a", "/a/*/b"),
		"[0].paths[2]":   limited(hosts("a.example"), nil, "/", "/*", "/a/../b"),
		"[0].paths[3]":   limited(hosts("a.example"), nil, "/", "/*", "/a/", "/a%2fb"),
		"[0].hosts":      limited(cidrs("10.0.0.0/8"), []string{"GET"}),
		"[0].group":      limited(&sandboxv1.EgressRule{Group: "x"}, []string{"GET"}),
	} {
		_, err := Compile(Groups{"x": {hosts("a.example")}}, sandbox(rule))
		var bad *RuleError
		if !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("got %v, want field %s", err, field)
		}
	}
}

func TestRelayChecksMethodsAndPaths(t *testing.T) {
	i := newIntercepted(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Method, " ", r.URL.Path) }))
	port := uint32(i.target.port)
	loopback := at(cidrs("127.0.0.0/8"), port)
	i.policy = compile(t, template(at(limited(hosts("example.com"), []string{"GET"}, "/ok/*"), port), loopback))
	i.secrets = nil
	for _, http2 := range []bool{false, true} {
		client := i.client(t, http2)
		for path, status := range map[string]int{"/ok/1": 200, "/other": 403} {
			response, err := client.Get("https://" + i.target.String() + path)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != status {
				t.Errorf("%s: got %s", path, response.Status)
			}
		}
	}

	// Without an authority, and with other protocols.
	i.authority = nil
	for _, first := range []string{string(hello(t, &tls.Config{ServerName: "example.com"})), "SSH-2.0-x\r\n", "POST /ok/1 HTTP/1.1\r\nHost: " + i.target.String() + "\r\n\r\n"} {
		near, done := i.open(t)
		send(t, near, first)
		_ = near.CloseWrite()
		_, _ = io.Copy(io.Discard, near)
		var denied *Denied
		if err := wait(t, done); !errors.As(err, &denied) || denied.Reason != ReasonRequest && denied.Reason != ReasonProtocol {
			t.Errorf("%q: got %v", first, err)
		}
	}
}

func TestApplyOfLimitsToUnreadConnections(t *testing.T) {
	r := relay(t, &Dialer{}, "a.example", 22)
	send(t, r.program, "SSH-2.0-x\r\n")
	expect(t, r.upstream, "SSH-2.0-x\r\n")
	loopback := at(cidrs("127.0.0.0/8"), 22)
	if err := r.conn.Apply(compile(t, template(at(hosts("*"), 22), loopback))); err != nil {
		t.Error(err)
	}
	var denied *Denied
	if err := r.conn.Apply(compile(t, template(at(limited(hosts("*"), []string{"GET"}), 22), loopback))); !errors.As(err, &denied) || denied.Reason != ReasonRequest {
		t.Errorf("got %v", err)
	}
}

// FuzzRequestPath looks for requests that an upstream could take for a path
// outside of the rule's.
func FuzzRequestPath(f *testing.F) {
	for _, seed := range []string{"/ok/a", "/ok/../b", "/ok/%2e%2e/b", "/ok/..%2fb", "/ok/%252e%252e/b", "/ok/..;/b", "/ok/..\\b", "//ok/b"} {
		f.Add(seed)
	}
	policy := compile(f, sandbox(limited(hosts("a.example"), nil, "/ok/*")))
	target := parse(f, "a.example", 443)
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := url.ParseRequestURI(raw)
		if err != nil || u.Host != "" || policy.checkRequest(target, &http.Request{Method: "GET", URL: u, Header: http.Header{}}) != nil {
			return
		}
		seen := u.EscapedPath()
		for range 3 {
			for _, segments := range []string{seen, strings.ReplaceAll(seen, "\\", "/")} {
				if clean := path.Clean(segments) + "/"; !strings.HasPrefix(clean, "/ok/") {
					t.Fatalf("%q may be %q", raw, clean)
				}
			}
			if seen, err = url.PathUnescape(seen); err != nil {
				return
			}
		}
	})
}
