package authn

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// testIssuer publishes keys and signs tokens.
type testIssuer struct {
	t       testing.TB
	server  *httptest.Server
	fetches atomic.Int32

	mu   sync.Mutex
	down bool
	keys []jose.JSONWebKey // the last one signs
}

func newTestIssuer(t testing.TB) *testIssuer {
	i := &testIssuer{t: t}
	i.rotate(true)
	i.server = httptest.NewServer(http.HandlerFunc(i.serve))
	t.Cleanup(i.server.Close)
	return i
}

func (i *testIssuer) serve(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.down {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		fmt.Fprintf(w, `{"issuer": %q, "jwks_uri": %q}`, i.server.URL, i.server.URL+"/keys")
	case "/keys":
		i.fetches.Add(1)
		set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: []byte("symmetric"), KeyID: "secret", Algorithm: "HS256"}}}
		for _, k := range i.keys {
			set.Keys = append(set.Keys, k.Public())
		}
		_ = json.NewEncoder(w).Encode(set)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// rotate adds a key that signs from now on, and withdraws the others.
func (i *testIssuer) rotate(withdraw bool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if withdraw {
		i.keys = nil
	}
	i.keys = append(i.keys, jose.JSONWebKey{Key: key, KeyID: fmt.Sprint(len(i.keys), time.Now().UnixNano()), Algorithm: "ES256", Use: "sig"})
}

func (i *testIssuer) setDown(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}

func (i *testIssuer) key() jose.JSONWebKey {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.keys[len(i.keys)-1]
}

// claims returns those of a valid token, changed by more. A nil value removes one.
func (i *testIssuer) claims(more map[string]any) map[string]any {
	now := time.Now()
	c := map[string]any{"iss": i.server.URL, "sub": "ann", "aud": "sandgate", "org": "blue",
		"iat": now.Unix(), "exp": now.Add(time.Hour).Unix()}
	maps.Copy(c, more)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

func (i *testIssuer) token(more map[string]any) string {
	return signed(i.t, jose.ES256, i.key(), "JWT", i.claims(more))
}

func signed(t testing.TB, alg jose.SignatureAlgorithm, key any, kind string, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, (&jose.SignerOptions{}).WithType(jose.ContentType(kind)))
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (i *testIssuer) open(change func(*IssuerConfig)) *OIDC {
	i.t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	i.t.Cleanup(func() { cancel(nil) })
	c := IssuerConfig{URL: i.server.URL, Audiences: []string{"sandgate"}, Mapping: Mapping{TenantClaim: "org"}}
	if change != nil {
		change(&c)
	}
	o, err := OpenOIDC(ctx, []IssuerConfig{c}, slog.New(slog.DiscardHandler))
	if err != nil {
		i.t.Fatal(err)
	}
	return o
}

// ask authenticates as the server does: it waits if the answer is not in memory.
func ask(ctx context.Context, a TokenAuthenticator, token string) (Principal, error) {
	p, err := a.AuthenticateToken(token)
	if pending := (*Pending)(nil); errors.As(err, &pending) {
		return pending.Wait(ctx)
	}
	return p, err
}

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

// While keys rotate, no valid token is refused, and one of a withdrawn key is.
func TestKeysRotateUnderLoad(t *testing.T) {
	t.Parallel()
	i := newTestIssuer(t)
	o := i.open(nil)
	withdrawn := i.token(nil)
	if _, err := ask(t.Context(), o, withdrawn); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var load sync.WaitGroup
	for n := range 8 {
		load.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := ask(t.Context(), o, i.token(map[string]any{"jti": fmt.Sprint(n, k)})); err != nil {
					t.Errorf("a valid token: %v", err)
					return
				}
			}
		})
	}
	for range 2 {
		i.rotate(false)
		if _, err := ask(t.Context(), o, i.token(nil)); err != nil {
			t.Errorf("a token of the new key: %v", err)
		}
	}
	close(stop)
	load.Wait()
	i.rotate(true)
	if _, err := ask(t.Context(), o, i.token(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t.Context(), o, withdrawn); !errors.Is(err, ErrUnknownCredentials) {
		t.Fatalf("a token of a withdrawn key: %v", err)
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
func TestIssuerDown(t *testing.T) {
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

// Keys count for a day while the issuer does not answer, and a withdrawn key counts
// for no longer than the interval of fetches.
func TestKeyAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		var fail atomic.Bool
		var sets, attempts atomic.Int32
		k := &issuerKeys{issuer: "x", log: slog.New(slog.DiscardHandler), fetch: func(context.Context) (*keySet, error) {
			attempts.Add(1)
			if fail.Load() {
				return nil, errors.New("down")
			}
			return &keySet{sum: [32]byte{byte(sets.Add(1))}}, nil
		}}
		k.start(ctx)
		synctest.Wait()
		first := k.current()
		if first == nil {
			t.Fatal("no keys")
		}
		time.Sleep(refreshInterval)
		synctest.Wait()
		if k.current() == first {
			t.Fatal("the keys were not fetched again")
		}
		fail.Store(true)
		at := time.Now()
		time.Sleep(maxKeyAge - refreshInterval)
		if k.current() == nil {
			t.Fatal("the keys do not count while the issuer is down")
		}
		time.Sleep(refreshInterval + time.Second)
		if k.current() != nil {
			t.Fatal("the keys count for ever")
		}
		if most := int(time.Since(at)/(maxFetchInterval*3/4)) + 10; int(attempts.Load()) > most {
			t.Fatalf("%d attempts, want at most %d", attempts.Load(), most)
		}
	})
}

func TestParseKeys(t *testing.T) {
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	document := func(keys ...jose.JSONWebKey) []byte {
		raw, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	good := jose.JSONWebKey{Key: ec.Public(), KeyID: "a"}
	many := make([]jose.JSONWebKey, maxKeys+1)
	for i := range many {
		many[i] = good
	}
	for name, c := range map[string]struct {
		raw  []byte
		want int
	}{
		"good":       {document(good), 1},
		"beside bad": {document(good, jose.JSONWebKey{Key: []byte("x")}), 1},
		"unknown":    {[]byte(`{"keys": [{"kty": "NEW"}, ` + string(document(good)[len(`{"keys":[`):])), 1},
		"small":      {document(jose.JSONWebKey{Key: small.Public()}), 0},
		"private":    {document(jose.JSONWebKey{Key: ec}), 0},
		"symmetric":  {document(jose.JSONWebKey{Key: []byte("x")}), 0},
		"encryption": {document(jose.JSONWebKey{Key: ec.Public(), Use: "enc"}), 0},
		"many":       {document(many...), 0},
		"none":       {[]byte(`{}`), 0},
		"no JSON":    {[]byte(`x`), 0},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := parseKeys(c.raw)
			if (err == nil) != (c.want > 0) || err == nil && len(set.keys) != c.want {
				t.Fatalf("got %v %v", set, err)
			}
		})
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
