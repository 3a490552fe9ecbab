// Command issuer is an OpenID Connect issuer for tests: the provider of
// github.com/zitadel/oidc with clients and keys in memory. It prints its URL, gives
// a token to who posts client credentials to /oauth/token, and has a new key after a
// POST to /rotate, beside the old ones or, with ?withdraw=1, in their place.
package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// store is the example's store with keys that rotate, and tokens for "sandgate".
type store struct {
	*storage.Storage
	mu   sync.Mutex
	keys []key // the last one signs
}

type key struct {
	id      string
	private *rsa.PrivateKey
}

func (k key) SignatureAlgorithm() jose.SignatureAlgorithm { return jose.RS256 }
func (k key) Key() any                                    { return k.private }
func (k key) ID() string                                  { return k.id }

type publicKey struct{ key }

func (p publicKey) Algorithm() jose.SignatureAlgorithm { return jose.RS256 }
func (p publicKey) Use() string                        { return "sig" }
func (p publicKey) Key() any                           { return &p.private.PublicKey }

func (s *store) rotate(withdraw bool) error {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if withdraw {
		s.keys = nil
	}
	s.keys = append(s.keys, key{rand.Text(), private})
	return nil
}

func (s *store) SigningKey(context.Context) (op.SigningKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[len(s.keys)-1], nil
}

func (s *store) KeySet(context.Context) ([]op.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []op.Key
	for _, k := range s.keys {
		all = append(all, publicKey{k})
	}
	return all, nil
}

// client has signed tokens instead of opaque ones.
type client struct{ op.Client }

func (client) AccessTokenType() op.AccessTokenType { return op.AccessTokenTypeJWT }

func (s *store) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	return s.ClientCredentials(ctx, id, "verysecret")
}

func (s *store) ClientCredentials(ctx context.Context, id, secret string) (op.Client, error) {
	c, err := s.Storage.ClientCredentials(ctx, id, secret)
	return client{c}, err
}

func (s *store) ClientCredentialsTokenRequest(_ context.Context, id string, scopes []string) (op.TokenRequest, error) {
	return &oidc.JWTTokenRequest{Subject: id, Audience: []string{"sandgate"}, Scopes: scopes}, nil
}

// CreateAccessToken gives a token the lifetime that the scope "lifetime:DURATION" names.
func (s *store) CreateAccessToken(ctx context.Context, r op.TokenRequest) (string, time.Time, error) {
	id, expires, err := s.Storage.CreateAccessToken(ctx, r)
	for _, scope := range r.GetScopes() {
		if text, ok := strings.CutPrefix(scope, "lifetime:"); ok && err == nil {
			var lifetime time.Duration
			lifetime, err = time.ParseDuration(text)
			expires = time.Now().Add(lifetime)
		}
	}
	return id, expires, err
}

// GetPrivateClaimsFromScopes turns each scope NAME:VALUE into a claim.
func (s *store) GetPrivateClaimsFromScopes(_ context.Context, _, _ string, scopes []string) (map[string]any, error) {
	claims := make(map[string]any)
	for _, scope := range scopes {
		if name, value, ok := strings.Cut(scope, ":"); ok {
			claims[name] = value
		}
	}
	return claims, nil
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	at := "127.0.0.1:0"
	if len(os.Args) > 1 {
		at = os.Args[1]
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	issuer := "http://" + l.Addr().String()
	s := &store{Storage: storage.NewStorage(storage.NewUserStore(issuer))}
	if err := s.rotate(true); err != nil {
		return err
	}
	provider, err := op.NewProvider(&op.Config{CryptoKey: sha256.Sum256([]byte(rand.Text()))}, s, op.StaticIssuer(issuer), op.WithAllowInsecure())
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", provider)
	mux.HandleFunc("POST /rotate", func(w http.ResponseWriter, r *http.Request) {
		if err := s.rotate(r.FormValue("withdraw") != ""); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	fmt.Println(issuer)
	return http.Serve(l, mux)
}
