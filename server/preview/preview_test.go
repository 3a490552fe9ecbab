package preview

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newURLs(t testing.TB, secret string) *URLs {
	t.Helper()
	u, err := NewURLs([]byte(secret), "https", "preview.example.com", 0)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

const secret = "0123456789abcdef"

func claims(t *rapid.T, label string) Claims {
	c := Claims{
		Tenant: rapid.StringN(1, 8, -1).Draw(t, label+" tenant"), SandboxID: rapid.StringMatching(`[a-z]{1,3}`).Draw(t, label+" id"),
		Incarnation: rapid.StringMatching(`[a-z]{1,2}`).Draw(t, label+" incarnation"), Principal: rapid.String().Draw(t, label+" principal"),
		Expires: time.Unix(rapid.Int64Range(0, 4_000_000_000).Draw(t, label+" expires"), 0).UTC(),
	}
	if rapid.Bool().Draw(t, label+" file") {
		c.Path, c.Put = "/"+rapid.String().Draw(t, label+" path"), rapid.Bool().Draw(t, label+" put")
	} else {
		c.Port = rapid.Int32Range(1, 65_535).Draw(t, label+" port")
	}
	return c
}

// A token opens as what was sealed, only with the same secret, unchanged, and until it
// expires. It reveals nothing of its content.
func TestTokens(t *testing.T) {
	ours, theirs := newURLs(t, secret), newURLs(t, secret+"x")
	rapid.Check(t, func(t *rapid.T) {
		c := claims(t, "")
		token, err := ours.keys.token(c)
		if err != nil {
			t.Fatal(err)
		}
		before := c.Expires.Add(-time.Second)
		if got, err := ours.keys.open(token, before); err != nil || got != c {
			t.Fatalf("%+v, %v", got, err)
		}
		if got, err := ours.keys.open(token, c.Expires); !errors.Is(err, errExpired) || got != c {
			t.Fatalf("expired: %+v, %v", got, err)
		}
		if _, err := theirs.keys.open(token, before); !errors.Is(err, errToken) {
			t.Fatalf("another secret: %v", err)
		}
		i := rapid.IntRange(0, len(token)-1).Draw(t, "changed")
		changed := token[:i] + string(rapid.SampledFrom([]byte("AZaz09-_=.%")).Draw(t, "to")) + token[i+1:]
		if _, err := ours.keys.open(changed, before); changed != token && !errors.Is(err, errToken) {
			t.Fatalf("changed: %v", err)
		}
	})
}

// A path whose last component means another directory has a URL that no client changes.
func TestPathsOfFiles(t *testing.T) {
	for file, want := range map[string]string{"/": "/file", "/a/.": "/file", "/a/..": "/file", "/a/": "/a", "/a/b": "/b"} {
		if got := urlPath(Claims{Path: file}); got != want {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
	}
}

// Every incarnation of a sandbox and port has a host of its own, and a file of it has
// another.
func TestHosts(t *testing.T) {
	u := newURLs(t, secret)
	rapid.Check(t, func(t *rapid.T) {
		a, b := claims(t, "a"), claims(t, "b")
		same := a.Tenant == b.Tenant && a.SandboxID == b.SandboxID && a.Incarnation == b.Incarnation && a.Port == b.Port
		host, err := u.keys.host(a)
		if err != nil || len(host) > 63 || !domainPattern.MatchString(host) {
			t.Fatalf("%q, %v", host, err)
		}
		if got := u.serves(host+".preview.example.com", b); got != same {
			t.Fatalf("%+v serves %+v: %t", b, a, got)
		}
		for _, other := range []string{host, host + ".example.com", "x." + host + ".preview.example.com", host + "preview.example.com"} {
			if u.serves(other, a) {
				t.Fatalf("%q is served", other)
			}
		}
		for _, equal := range []string{strings.ToUpper(host) + ".Preview.example.com", host + ".preview.example.com.", host + ".preview.example.com:8443"} {
			if !u.serves(equal, a) {
				t.Fatalf("%q is not served", equal)
			}
		}
	})
}

func TestNewURLs(t *testing.T) {
	for name, c := range map[string]struct{ secret, scheme, domain, want string }{
		"a port":           {secret, "http", "localhost:7780", "localhost:7780"},
		"upper case":       {secret, "https", "Preview.Example.com.", "preview.example.com"},
		"the default port": {secret, "https", "a.b:443", "a.b"},
		"a short secret":   {"short", "https", "a.b", ""},
		"another scheme":   {secret, "ftp", "a.b", ""},
		"no domain":        {secret, "https", "", ""},
		"an address":       {secret, "https", "127.0.0.1", ""},
		"IPv6":             {secret, "https", "[::1]:80", ""},
		"a path":           {secret, "https", "a.b/c", ""},
		"a wildcard":       {secret, "https", "*.a.b", ""},
		"a bad port":       {secret, "https", "a.b:0", ""},
		"too long":         {secret, "https", strings.Repeat("a.", 100) + "b", ""},
	} {
		u, err := NewURLs([]byte(c.secret), c.scheme, c.domain, 0)
		if (err == nil) != (c.want != "") || (err == nil && u.Domain() != c.want) {
			t.Errorf("%s: %v, %v", name, u, err)
		}
	}
	if _, err := NewURLs([]byte(secret), "https", "a.b", -1); err == nil {
		t.Error("a negative lifetime")
	}
}

// No part of a request's query or cookies that holds a token passes, and the others
// pass unchanged.
func TestStripping(t *testing.T) {
	part := rapid.StringMatching(`[a-z%+;]{0,3}(=[A-Za-z0-9%=;]{0,5})?`)
	rapid.Check(t, func(t *rapid.T) {
		others := rapid.SliceOfN(part, 1, 5).Draw(t, "others")
		at := rapid.IntRange(0, len(others)).Draw(t, "at")
		all := append(append(append([]string{}, others[:at]...), tokenParameter+"=secret"), others[at:]...)
		tokens, rest := cutToken(strings.Join(all, "&"))
		if len(tokens) != 1 || tokens[0] != "secret" || rest != strings.Join(others, "&") {
			t.Fatalf("%q, %q of %q", tokens, rest, all)
		}
	})
	header := http.Header{"Cookie": {"a=1; __Host-sandgate=x;b=2", "__Host-sandgate=y", " __Host-sandgate =z; c"}}
	stripCookie(header)
	if got := strings.Join(header["Cookie"], "|"); got != "a=1;b=2|c" {
		t.Errorf("%q", got)
	}
	header = http.Header{"Set-Cookie": {"a=__Host-sandgate=1", "__Host-sandgate=x", "__HOST-SANDGATE=y; Path=/"}}
	stripSetCookie(header)
	if got := strings.Join(header["Set-Cookie"], "|"); got != "a=__Host-sandgate=1" {
		t.Errorf("%q", got)
	}
}

// FuzzPermit: no request without a valid token of the server is permitted.
func FuzzPermit(f *testing.F) {
	u := newURLs(f, secret)
	h := NewHandler(Config{URLs: u})
	foreign, err := newURLs(f, secret+"x").Create(Claims{Tenant: "t", SandboxID: "s", Incarnation: "i", Port: 80, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("80-x.preview.example.com", "a=b&"+tokenParameter+"="+foreign.Token, "Bearer "+foreign.Token, cookieName+"="+foreign.Token)
	f.Add("", "&&&=", "Bearer", ";;=;")
	f.Fuzz(func(t *testing.T, host, query, authorization, cookie string) {
		r, err := http.NewRequest(http.MethodGet, "https://x/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host, r.URL.RawQuery = host, query
		r.Header.Set("Authorization", authorization)
		r.Header.Set("Cookie", cookie)
		if _, ok := h.permit(r); ok {
			t.Fatal("permitted")
		}
		if _, rest := cutToken(query); strings.Contains("&"+rest, "&"+tokenParameter+"=") {
			t.Fatalf("a token is left in %q", rest)
		}
		stripCookie(r.Header)
		if _, err := r.Cookie(cookieName); err == nil {
			t.Fatalf("the cookie is left in %q", r.Header["Cookie"])
		}
	})
}
