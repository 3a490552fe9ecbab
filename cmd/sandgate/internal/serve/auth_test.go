package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/sandgate/sandgate/server/authn"
)

func TestAuthenticatorOfConfiguration(t *testing.T) {
	const issuer = "issuer: https://example.com, audiences: [a]"
	for name, c := range map[string]struct{ text, want, err string }{
		"none":            {"", "", ""},
		"issuers":         {"auth: {oidc: [{" + issuer + ", tenant: t, role_claim: groups, roles: {ops: operator}, role: reader}]}", "oidc", ""},
		"all":             {"auth: {tokens_file: TOKENS, oidc: [{" + issuer + ", tenant_claim: org}], kubernetes: {audience: a, kubeconfig: KUBECONFIG, accounts: [{namespace: '*', name: '*', role: reader}]}}\ntls: {client_ca: x}", "oidc+kubernetes+tokens+certificates", ""},
		"no audience":     {"auth: {oidc: [{issuer: 'https://example.com', tenant: t}]}", "", "audiences must be given"},
		"http":            {"auth: {oidc: [{issuer: 'http://example.com', audiences: [a], tenant: t}]}", "", "https://"},
		"no CA":           {"auth: {oidc: [{" + issuer + ", tenant: t, ca_file: /nonexistent}]}", "", "ca_file"},
		"no accounts":     {"auth: {kubernetes: {audience: a, kubeconfig: KUBECONFIG}}", "", "at least one account"},
		"accounts alone":  {"auth: {kubernetes: {accounts: [{namespace: a, name: b}]}}", "", "need an audience"},
		"no such cluster": {"auth: {kubernetes: {audience: a, kubeconfig: /nonexistent, accounts: [{namespace: a, name: b}]}}", "", "auth.kubernetes"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tokens := filepath.Join(dir, "tokens")
			if err := os.WriteFile(tokens, []byte("tokens: []\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			text := strings.NewReplacer("TOKENS", tokens, "KUBECONFIG", kubeconfig(t, "https://127.0.0.1:1")).Replace(c.text)
			parsed := configOf(t, text)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			a, err := parsed.authenticator(ctx, authn.Certificates{}, slog.New(slog.DiscardHandler))
			switch {
			case c.err != "":
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v", err)
				}
			case err != nil || (a == nil) != (c.want == "") || a != nil && a.Name() != c.want:
				t.Fatalf("got %v %v", a, err)
			}
		})
	}
}

func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n", server)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The real client asks an API server for a review of the audience, and reads its
// answer.
func TestTokenReview(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "cluster"}}}
	answers := make(chan func(http.ResponseWriter, *authenticationv1.TokenReview), 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/openid/v1/jwks" && r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "*/*") {
			w.Header().Set("Content-Type", "application/jwk-set+json")
			_ = json.NewEncoder(w).Encode(public)
			return
		}
		var review authenticationv1.TokenReview
		if r.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" || r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&review) != nil {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		(<-answers)(w, &review)
	}))
	defer server.Close()
	c := configOf(t, "auth: {kubernetes: {audience: sandgate, accounts: [{namespace: ci, name: runner, role: reader}]}}\nkubernetes: {kubeconfig: "+kubeconfig(t, server.URL)+"}")
	accounts, err := c.accounts(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	askBy := func(key *ecdsa.PrivateKey, answer func(http.ResponseWriter, *authenticationv1.TokenReview)) (authn.Principal, error) {
		n++
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "cluster"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.Signed(signer).Claims(jwt.Claims{Subject: "system:serviceaccount:ci:runner", Audience: jwt.Audience{"sandgate"},
			Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)), ID: fmt.Sprint(n)}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		answers <- func(w http.ResponseWriter, r *authenticationv1.TokenReview) {
			if r.Spec.Token != token || len(r.Spec.Audiences) != 1 || r.Spec.Audiences[0] != "sandgate" {
				t.Errorf("asked for %v", r.Spec.Audiences)
			}
			answer(w, r)
		}
		_, err = accounts.AuthenticateToken(token)
		var pending *authn.Pending
		if !errors.As(err, &pending) {
			t.Fatal(err)
		}
		return pending.Wait(t.Context())
	}
	ask := func(answer func(http.ResponseWriter, *authenticationv1.TokenReview)) (authn.Principal, error) {
		return askBy(key, answer)
	}
	p, err := ask(func(w http.ResponseWriter, r *authenticationv1.TokenReview) {
		r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: r.Spec.Audiences,
			User: authenticationv1.UserInfo{Username: "system:serviceaccount:ci:runner"}}
		_ = json.NewEncoder(w).Encode(r)
	})
	if want := (authn.Principal{Name: "system:serviceaccount:ci:runner", Tenant: "ci", Role: authn.RoleReader, Issuer: "kubernetes"}); err != nil || !p.Equal(want) {
		t.Fatalf("got %+v %v", p, err)
	}
	_, err = ask(func(w http.ResponseWriter, r *authenticationv1.TokenReview) {
		r.Status = authenticationv1.TokenReviewStatus{Error: "token was revoked"}
		_ = json.NewEncoder(w).Encode(r)
	})
	if !errors.Is(err, authn.ErrUnknownCredentials) {
		t.Fatalf("a refused token: %v", err)
	}
	_, err = ask(func(w http.ResponseWriter, _ *authenticationv1.TokenReview) { w.WriteHeader(http.StatusForbidden) })
	if !errors.Is(err, authn.ErrUnavailable) {
		t.Fatalf("a server that may not ask: %v", err)
	}
	forger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// Once the keys are known, a forged token is refused without a review.
	refuse := func(w http.ResponseWriter, r *authenticationv1.TokenReview) { _ = json.NewEncoder(w).Encode(r) }
	for {
		if _, err := askBy(forger, refuse); !errors.Is(err, authn.ErrUnknownCredentials) {
			t.Fatalf("a forged token: %v", err)
		}
		if len(answers) == 1 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	<-answers
	if p, err := ask(func(w http.ResponseWriter, r *authenticationv1.TokenReview) {
		r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: r.Spec.Audiences,
			User: authenticationv1.UserInfo{Username: "system:serviceaccount:ci:runner"}}
		_ = json.NewEncoder(w).Encode(r)
	}); err != nil {
		t.Fatalf("got %+v %v", p, err)
	}
}
