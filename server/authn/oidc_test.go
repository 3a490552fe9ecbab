package authn

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

func TestIssuerTokens(t *testing.T) {
	t.Parallel()
	i := newTestIssuer(t)
	o := i.open(nil)
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key := i.key()
	public, err := json.Marshal(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	unsigned := func(claims map[string]any) string {
		parts := strings.Split(i.token(claims), ".")
		return "eyJhbGciOiJub25lIn0." + parts[1] + "."
	}
	for name, c := range map[string]struct {
		token string
		err   error
	}{
		"valid":            {i.token(nil), nil},
		"audiences":        {i.token(map[string]any{"aud": []string{"x", "sandgate"}, "azp": "sandgate"}), nil},
		"access token":     {signed(t, jose.ES256, key, "at+jwt", i.claims(nil)), nil},
		"no key id":        {signed(t, jose.ES256, key.Key, "JWT", i.claims(nil)), nil},
		"within the skew":  {i.token(map[string]any{"exp": time.Now().Add(-10 * time.Second).Unix()}), nil},
		"other key":        {signed(t, jose.ES256, jose.JSONWebKey{Key: other, KeyID: key.KeyID}, "JWT", i.claims(nil)), ErrUnknownCredentials},
		"unknown key":      {signed(t, jose.ES256, jose.JSONWebKey{Key: other, KeyID: "x"}, "JWT", i.claims(nil)), ErrUnknownCredentials},
		"no algorithm":     {unsigned(nil), ErrNoCredentials},
		"public as secret": {signed(t, jose.HS256, jose.JSONWebKey{Key: public, KeyID: key.KeyID}, "JWT", i.claims(nil)), ErrNoCredentials},
		"published secret": {signed(t, jose.HS256, jose.JSONWebKey{Key: []byte("symmetricsymmetricsymmetric-symm"), KeyID: "secret"}, "JWT", i.claims(nil)), ErrNoCredentials},
		"logout token":     {signed(t, jose.ES256, key, "logout+jwt", i.claims(nil)), ErrUnknownCredentials},
		"other issuer":     {i.token(map[string]any{"iss": "https://example.com"}), ErrNoCredentials},
		"issuer in caps":   {i.token(map[string]any{"iss": nil, "ISS": i.server.URL}), ErrNoCredentials},
		"no audience":      {i.token(map[string]any{"aud": nil}), ErrUnknownCredentials},
		"other audience":   {i.token(map[string]any{"aud": "other"}), ErrUnknownCredentials},
		"audience in part": {i.token(map[string]any{"aud": "sandgate-2"}), ErrUnknownCredentials},
		"no party":         {i.token(map[string]any{"aud": []string{"x", "sandgate"}}), ErrUnknownCredentials},
		"other party":      {i.token(map[string]any{"aud": []string{"x", "sandgate"}, "azp": "x"}), ErrUnknownCredentials},
		"no expiry":        {i.token(map[string]any{"exp": nil}), ErrUnknownCredentials},
		"expired":          {i.token(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}), ErrExpired},
		"not yet":          {i.token(map[string]any{"nbf": time.Now().Add(time.Minute).Unix()}), ErrUnknownCredentials},
		"issued later":     {i.token(map[string]any{"iat": time.Now().Add(time.Minute).Unix()}), ErrUnknownCredentials},
		"no tenant":        {i.token(map[string]any{"org": nil}), ErrForbidden},
		"too large":        {i.token(map[string]any{"x": strings.Repeat("x", maxToken)}), ErrUnknownCredentials},
		"a hashed token":   {"sgt_x", ErrNoCredentials},
		"empty":            {"", ErrNoCredentials},
		"dots":             {"..", ErrNoCredentials},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // the second time from memory
				p, err := ask(t.Context(), o, c.token)
				if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
					t.Fatalf("got %v %v", p, err)
				}
				if err == nil && !p.Equal(Principal{Name: "ann", Tenant: "blue", Issuer: i.server.URL}) {
					t.Fatalf("got %+v", p)
				}
				if err != nil && len(c.token) > 3 && strings.Contains(err.Error(), c.token) {
					t.Fatalf("the error has the token: %v", err)
				}
			}
		})
	}
	parties := i.open(func(c *IssuerConfig) { c.AuthorizedParties = []string{"cli"} })
	for party, want := range map[any]error{"cli": nil, "web": ErrUnknownCredentials, nil: ErrUnknownCredentials} {
		if _, err := ask(t.Context(), parties, i.token(map[string]any{"azp": party})); !errors.Is(err, want) {
			t.Errorf("authorized party %v: got %v", party, err)
		}
	}
}

// Forged tokens make the server ask the issuer once a second at most.
func TestForgedTokensDoNotFloodTheIssuer(t *testing.T) {
	t.Parallel()
	i := newTestIssuer(t)
	o := i.open(nil)
	if _, err := ask(t.Context(), o, i.token(nil)); err != nil {
		t.Fatal(err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	before, began := i.fetches.Load(), time.Now()
	var calls sync.WaitGroup
	for n := range 300 {
		token := signed(t, jose.ES256, jose.JSONWebKey{Key: other, KeyID: fmt.Sprint(n)}, "JWT", i.claims(nil))
		calls.Go(func() {
			if _, err := ask(t.Context(), o, token); !errors.Is(err, ErrUnknownCredentials) && !errors.Is(err, ErrUnavailable) {
				t.Errorf("got %v", err)
			}
		})
	}
	calls.Wait()
	if n, most := i.fetches.Load()-before, int32(time.Since(began)/minFetchInterval)+1; n > most {
		t.Fatalf("%d fetches, want at most %d", n, most)
	}
}

// An issuer that is down at the start refuses no one for ever, and one that goes
// down later refuses no one whose key is known.
func TestIssuerThatIsDownRefusesNoKnownKey(t *testing.T) {
	t.Parallel()
	i := newTestIssuer(t)
	i.setDown(true)
	o := i.open(nil)
	if _, err := ask(t.Context(), o, i.token(nil)); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	i.setDown(false)
	for late := time.Now().Add(20 * time.Second); ; {
		_, err := ask(t.Context(), o, i.token(nil))
		if err == nil {
			break
		}
		if !errors.Is(err, ErrUnavailable) || time.Now().After(late) {
			t.Fatal(err)
		}
	}
	i.setDown(true)
	if _, err := ask(t.Context(), o, i.token(nil)); err != nil {
		t.Fatalf("a known key, and the issuer is down: %v", err)
	}
	i.rotate(true)
	if _, err := ask(t.Context(), o, i.token(nil)); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("a new key, and the issuer is down: %v", err)
	}
}

func TestIssuerConfig(t *testing.T) {
	good := func() IssuerConfig {
		return IssuerConfig{URL: "https://example.com", Audiences: []string{"a"}, Mapping: Mapping{Tenant: "t"}}
	}
	for name, change := range map[string]func(*IssuerConfig){
		"http":             func(c *IssuerConfig) { c.URL = "http://example.com" },
		"userinfo":         func(c *IssuerConfig) { c.URL = "https://a:b@example.com" },
		"no audience":      func(c *IssuerConfig) { c.Audiences = nil },
		"empty audience":   func(c *IssuerConfig) { c.Audiences = []string{""} },
		"skew":             func(c *IssuerConfig) { c.ClockSkew = time.Hour },
		"no tenant":        func(c *IssuerConfig) { c.Mapping.Tenant = "" },
		"two tenants":      func(c *IssuerConfig) { c.Mapping.TenantClaim = "org" },
		"prefix":           func(c *IssuerConfig) { c.Mapping.TenantPrefix = "x-" },
		"role claim alone": func(c *IssuerConfig) { c.Mapping.RoleClaim = "groups" },
		"roles alone":      func(c *IssuerConfig) { c.Mapping.Roles = map[string]Role{"a": RoleUser} },
	} {
		t.Run(name, func(t *testing.T) {
			c := good()
			change(&c)
			if _, err := OpenOIDC(t.Context(), []IssuerConfig{c}, nil); err == nil {
				t.Fatal("accepted")
			}
		})
	}
	if _, err := OpenOIDC(t.Context(), []IssuerConfig{good(), good()}, nil); err == nil {
		t.Fatal("accepted an issuer twice")
	}
}

// BenchmarkRefusal measures what a forged token costs, and what a valid one costs
// that was checked before.
func BenchmarkRefusal(b *testing.B) {
	for _, alg := range []jose.SignatureAlgorithm{jose.RS256, jose.ES256} {
		i := newTestIssuer(b)
		if alg == jose.RS256 {
			key, err := rsa.GenerateKey(rand.Reader, 2048)
			if err != nil {
				b.Fatal(err)
			}
			i.keys = []jose.JSONWebKey{{Key: crypto.PrivateKey(key), KeyID: "rsa", Algorithm: "RS256"}}
		}
		o := i.open(nil)
		valid := signed(b, alg, i.key(), "JWT", i.claims(nil))
		forged := valid[:len(valid)-8] + "AAAAAAAA"
		if _, err := ask(b.Context(), o, valid); err != nil {
			b.Fatal(err)
		}
		for name, token := range map[string]string{"forged": forged, "expired": signed(b, alg, i.key(), "JWT", i.claims(map[string]any{"exp": 1})), "known": valid} {
			b.Run(string(alg)+"/"+name, func(b *testing.B) {
				for b.Loop() {
					_, _ = o.AuthenticateToken(token)
				}
			})
		}
	}
}
