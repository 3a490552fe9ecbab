package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
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
