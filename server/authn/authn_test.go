package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func bearer(ctx context.Context, token string) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+token))
}

func write(t *testing.T, path string, entries ...Entry) {
	t.Helper()
	text := "# people\ntokens:\n"
	for _, e := range entries {
		text += fmt.Sprintf("  - {name: %s, tenant: %s, sha256: %s}\n", e.Name, e.Tenant, e.SHA256)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTokensReload(t *testing.T) { synctest.Test(t, testTokensReload) }

func testTokensReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	first, e1, err := NewToken(Entry{Name: "ann", Tenant: "blue"})
	if err != nil {
		t.Fatal(err)
	}
	second, e2, err := NewToken(Entry{Name: "bob", Tenant: "red"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(first, TokenPrefix) || first == second || strings.Contains(e1.SHA256, first) {
		t.Fatalf("tokens %q and %q", first, second)
	}
	write(t, path, e1)
	tokens, err := OpenTokens(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	again := func() { time.Sleep(time.Second) }
	if p, err := tokens.Authenticate(bearer(t.Context(), first)); err != nil || !p.Equal(Principal{Name: "ann", Tenant: "blue", Issuer: "tokens"}) {
		t.Fatalf("%v %v", p, err)
	}
	if _, err := tokens.Authenticate(bearer(t.Context(), second)); !errors.Is(err, ErrUnknownCredentials) || strings.Contains(err.Error(), second) {
		t.Fatalf("got %v", err)
	}
	write(t, path, e1, e2)
	again()
	if p, err := tokens.Authenticate(bearer(t.Context(), second)); err != nil || p.Tenant != "red" {
		t.Fatalf("%v %v", p, err)
	}
	// What cannot be read does not lock everybody out.
	if err := os.WriteFile(path, []byte("tokens: [{nome: x}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	again()
	if _, err := tokens.Authenticate(bearer(t.Context(), second)); err != nil {
		t.Fatal(err)
	}
	write(t, path, e2)
	again()
	if _, err := tokens.Authenticate(bearer(t.Context(), first)); !errors.Is(err, ErrUnknownCredentials) {
		t.Fatalf("a removed token counts: %v", err)
	}
}

// A token counts until it expires, to the moment.
func TestTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "tokens")
		token, e, err := NewToken(Entry{Name: "ann", Tenant: "blue"})
		if err != nil {
			t.Fatal(err)
		}
		for _, quote := range []string{"", `"`} {
			expires := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
			text := fmt.Sprintf("tokens:\n  - {name: ann, tenant: blue, sha256: %s, expires: %s%s%s}\n", e.SHA256, quote, expires, quote)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			tokens, err := OpenTokens(path, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour - time.Second)
			if _, err := tokens.Authenticate(bearer(t.Context(), token)); err != nil {
				t.Fatalf("before the end: %v", err)
			}
			time.Sleep(time.Second)
			_, err = tokens.Authenticate(bearer(t.Context(), token))
			if !errors.Is(err, ErrExpired) || !errors.Is(err, ErrUnknownCredentials) || strings.Contains(err.Error(), token) {
				t.Fatalf("after the end: %v", err)
			}
		}
	})
}

// No content of the file is a token without a name, a tenant or a hash.
func FuzzTokens(f *testing.F) {
	hash := strings.Repeat("ab", 32)
	f.Add([]byte("tokens:\n  - {name: a, tenant: b, sha256: " + hash + "}\n"))
	f.Add([]byte("tokens: [{name: a, tenant: b, sha256: " + hash + ", expires: 2027-01-01T00:00:00Z}]"))
	f.Add([]byte("tokens: [{name: a, tenant: b, sha256: " + hash + ", expires: 0001-01-01T00:00:00Z}]"))
	f.Add([]byte("tokens: [{name: a, tenant: b, sha256: " + hash + ", role: reader, templates: [x], id_prefix: x-}]"))
	f.Add([]byte("tokens: &a [*a]"))
	f.Add([]byte("{\"tokens\": [{\"name\": \"\\u0000\"}]}"))
	f.Add([]byte("tokens:\n- <<: {name: a}\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		known, err := parseTokens(raw)
		if err != nil && len(known) > 0 {
			t.Fatalf("%d tokens beside %v", len(known), err)
		}
		for hash, h := range known {
			if h.Name == "" || h.Tenant == "" || h.Role.String() == "" {
				t.Fatalf("%x stands for %+v", hash, h)
			}
		}
	})
}

func TestTokensFileErrors(t *testing.T) {
	for name, text := range map[string]string{
		"unknown field": "tokens:\n  - {name: a, tenant: b, sha256: c, secret: d}\n",
		"short hash":    "tokens:\n  - {name: a, tenant: b, sha256: abcd}\n",
		"no tenant":     "tokens:\n  - {name: a, sha256: " + strings.Repeat("ab", 32) + "}\n",
		"same hash": "tokens:\n  - {name: a, tenant: a, sha256: " + strings.Repeat("ab", 32) + "}\n" +
			"  - {name: b, tenant: b, sha256: " + strings.Repeat("ab", 32) + "}\n",
		"not YAML":     "{",
		"no such role": "tokens: [{name: a, tenant: a, role: admin, sha256: " + strings.Repeat("ab", 32) + "}]",
		"prefix":       "tokens: [{name: a, tenant: a, id_prefix: a/b, sha256: " + strings.Repeat("ab", 32) + "}]",
		"same hash, other scope": "tokens:\n  - {name: a, tenant: a, sha256: " + strings.Repeat("ab", 32) + "}\n" +
			"  - {name: a, tenant: a, role: reader, sha256: " + strings.Repeat("ab", 32) + "}\n",
		"no date":  "tokens: [{name: a, tenant: a, sha256: " + strings.Repeat("ab", 32) + ", expires: soon}]",
		"day only": "tokens: [{name: a, tenant: a, sha256: " + strings.Repeat("ab", 32) + ", expires: 2027-01-01}]",
		"year 0":   "tokens: [{name: a, tenant: a, sha256: " + strings.Repeat("ab", 32) + ", expires: 0001-01-01T00:00:00Z}]",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokens")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenTokens(path, slog.New(slog.DiscardHandler)); err == nil {
				t.Fatal("accepted")
			}
		})
	}
	if _, err := OpenTokens(filepath.Join(t.TempDir(), "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
}

func TestCertificates(t *testing.T) {
	spiffe, err := url.Parse("spiffe://example/agent")
	if err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		cert *x509.Certificate
		want Principal
		err  error
	}{
		"organization": {&x509.Certificate{NotAfter: later, Subject: pkix.Name{CommonName: "ann", Organization: []string{"blue"}}}, Principal{Name: "ann", Tenant: "blue", Issuer: "certificates"}, nil},
		"uri wins": {&x509.Certificate{NotAfter: later, Subject: pkix.Name{CommonName: "ann", Organization: []string{"blue"}}, URIs: []*url.URL{spiffe}},
			Principal{Name: "spiffe://example/agent", Tenant: "blue", Issuer: "certificates"}, nil},
		// Otherwise blue would be the tenant of O=blue.
		"a name alone":       {&x509.Certificate{NotAfter: later, Subject: pkix.Name{CommonName: "blue"}}, Principal{}, ErrUnknownCredentials},
		"empty organization": {&x509.Certificate{NotAfter: later, Subject: pkix.Name{CommonName: "ann", Organization: []string{""}}}, Principal{}, ErrUnknownCredentials},
		"two organizations": {&x509.Certificate{NotAfter: later, Subject: pkix.Name{CommonName: "ann", Organization: []string{"blue", "red"}}},
			Principal{}, ErrUnknownCredentials},
		"expired meanwhile": {&x509.Certificate{NotAfter: time.Now().Add(-time.Second), Subject: pkix.Name{CommonName: "ann", Organization: []string{"blue"}}},
			Principal{}, ErrExpired},
		"a role": {&x509.Certificate{NotAfter: later, Subject: pkix.Name{CommonName: "ann", Organization: []string{"blue"}, OrganizationalUnit: []string{"people", "sandgate-reader"}}},
			Principal{Name: "ann", Tenant: "blue", Issuer: "certificates", Role: RoleReader}, nil},
		"two roles": {&x509.Certificate{NotAfter: later, Subject: pkix.Name{CommonName: "ann", Organization: []string{"blue"}, OrganizationalUnit: []string{"sandgate-user", "sandgate-reader"}}},
			Principal{}, ErrUnknownCredentials},
		"no such role": {&x509.Certificate{NotAfter: later, Subject: pkix.Name{CommonName: "ann", Organization: []string{"blue"}, OrganizationalUnit: []string{"sandgate-admin"}}},
			Principal{}, ErrUnknownCredentials},
		"nameless": {&x509.Certificate{NotAfter: later}, Principal{}, ErrUnknownCredentials},
		"none":     {nil, Principal{}, ErrNoCredentials},
	} {
		t.Run(name, func(t *testing.T) {
			var state tls.ConnectionState
			if c.cert != nil {
				state.VerifiedChains = [][]*x509.Certificate{{c.cert}}
			}
			ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}})
			p, err := Certificates{}.Authenticate(ctx)
			if !p.Equal(c.want) || !errors.Is(err, c.err) {
				t.Fatalf("got %v %v", p, err)
			}
		})
	}
}

func TestAny(t *testing.T) {
	any := Any{Certificates{}, fixed{"x"}}
	if p, err := any.Authenticate(t.Context()); err != nil || p.Name != "x" {
		t.Fatalf("%v %v", p, err)
	}
	if any.Name() != "certificates+fixed" {
		t.Fatal(any.Name())
	}
	if _, err := (Any{}).Authenticate(t.Context()); !errors.Is(err, ErrNoCredentials) {
		t.Fatalf("got %v", err)
	}
}

type fixed struct{ name string }

func (f fixed) Authenticate(context.Context) (Principal, error) { return Principal{Name: f.name}, nil }
func (fixed) Name() string                                      { return "fixed" }
