package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/admission"
	"github.com/sandgate/sandgate/server/authn"
)

// tokenSigner signs tokens and publishes the key, until it is withdrawn.
type tokenSigner struct {
	t    *testing.T
	url  string
	keys atomic.Pointer[jose.JSONWebKey]
}

func newTokenSigner(t *testing.T) *tokenSigner {
	s := &tokenSigner{t: t}
	s.rotate()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/openid-configuration") {
			fmt.Fprintf(w, `{"issuer": %q, "jwks_uri": %q}`, s.url, s.url+"/keys")
			return
		}
		raw, _ := s.keySet(r.Context())
		_, _ = w.Write(raw)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *tokenSigner) keySet(context.Context) ([]byte, error) {
	return json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{s.keys.Load().Public()}})
}

func (s *tokenSigner) rotate() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	s.keys.Store(&jose.JSONWebKey{Key: key, KeyID: rand.Text()})
}

// bearer returns a context with a token of these claims beside the usual ones.
func (s *tokenSigner) bearer(more map[string]any) context.Context {
	s.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: *s.keys.Load()}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	claims := map[string]any{"iss": s.url, "sub": "ann", "aud": "sandgate", "org": "blue", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, more)
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		s.t.Fatal(err)
	}
	return metadata.AppendToOutgoingContext(s.t.Context(), "authorization", "Bearer "+token)
}

var validCall = method{full: "/sandbox.v1.SandboxService/GetServerInfo"}

// refusedCalls makes every call with each kind of invalid credentials.
func refusedCalls(valid context.Context, t *testing.T, srv *Server, conn *grpc.ClientConn, records *matrixRecords, invalid map[string]context.Context, unchanged func(*testing.T)) {
	for name, ctx := range invalid {
		t.Run(name, func(t *testing.T) {
			// So many refused calls in a row would end the connection.
			if _, err := validCall.call(valid, conn); err != nil {
				t.Fatal(err)
			}
			for _, m := range methods(t, srv) {
				_, err := m.call(ctx, conn)
				records.wantRefused(t, m, err)
			}
			unchanged(t)
		})
	}
}

// readerCalls makes every call that a reader may not make.
func readerCalls(reader context.Context, t *testing.T, srv *Server, conn *grpc.ClientConn, records *matrixRecords) {
	for _, m := range ownCalls(t, srv) {
		if admission.PermissionOf(m.full).Role > authn.RoleReader {
			got, err := m.call(reader, conn)
			records.wantForbidden(t, m, got, err)
		}
	}
}

// TestEveryRPCWithEveryIssuedToken calls every RPC with every kind of token of an issuer.
func TestEveryRPCWithEveryIssuedToken(t *testing.T) {
	s := newTokenSigner(t)
	addr, srv, records, unchanged := newMatrix(t, func(c *Config) {
		ctx, cancel := context.WithCancelCause(context.Background())
		t.Cleanup(func() { cancel(nil) })
		oidc, err := authn.OpenOIDC(ctx, []authn.IssuerConfig{{URL: s.url, Audiences: []string{"sandgate"}, Mapping: authn.Mapping{
			TenantClaim: "org", RoleClaim: "groups", Roles: map[string]authn.Role{"guests": authn.RoleReader, "devs": authn.RoleUser},
		}}}, c.Logger)
		if err != nil {
			t.Fatal(err)
		}
		c.Authenticator = authn.Bearer{oidc}
	})
	conn := dialServer(t, addr, insecure.NewCredentials())
	devs := func(more map[string]any) context.Context {
		claims := map[string]any{"groups": []string{"devs"}}
		maps.Copy(claims, more)
		return s.bearer(claims)
	}
	withdrawn := devs(nil)
	if _, err := validCall.call(withdrawn, conn); err != nil {
		t.Fatal(err)
	}
	s.rotate()
	valid := devs(nil)
	forger := &tokenSigner{t: t, url: s.url}
	forger.rotate()
	forger.keys.Load().KeyID = s.keys.Load().KeyID
	malformed := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer a.b.c")
	none := t.Context()
	refusedCalls(valid, t, srv, conn, records, map[string]context.Context{
		"none": none, "malformed": malformed, "wrong": forger.bearer(nil), "expired": devs(map[string]any{"exp": 1}),
		"other audience": devs(map[string]any{"aud": "x"}), "other issuer": devs(map[string]any{"iss": "https://example.com"}),
	}, unchanged)
	t.Run("revoked", func(t *testing.T) {
		// Each waits for the issuer's keys, so one call stands for all.
		_, err := validCall.call(withdrawn, conn)
		records.wantRefused(t, validCall, err)
		unchanged(t)
	})
	t.Run("no tenant", func(t *testing.T) {
		ctx := s.bearer(map[string]any{"groups": []string{"x"}})
		for _, m := range ownCalls(t, srv) {
			got, err := m.call(ctx, conn)
			records.wantForbidden(t, m, got, err)
		}
		unchanged(t)
	})
	t.Run("reader", func(t *testing.T) {
		readerCalls(s.bearer(map[string]any{"groups": []string{"guests"}}), t, srv, conn, records)
		unchanged(t)
	})
	t.Run("other tenant", func(t *testing.T) {
		otherTenant(devs(map[string]any{"org": "red"}), t, srv, conn)
		unchanged(t)
	})
	records.complete(t, srv)
}

// TestEveryRPCWithEveryAccountToken calls every RPC with every kind of token of a service account.
func TestEveryRPCWithEveryAccountToken(t *testing.T) {
	s := newTokenSigner(t)
	// The API server knows the tokens of these accounts, and is away for others.
	var known sync.Map
	account := func(namespace, name string, valid bool) context.Context {
		user := "system:serviceaccount:" + namespace + ":" + name
		ctx := s.bearer(map[string]any{"iss": "https://kubernetes", "sub": user, "jti": rand.Text()})
		md, _ := metadata.FromOutgoingContext(ctx)
		known.Store(strings.TrimPrefix(md.Get("authorization")[0], "Bearer "), authn.Review{Authenticated: valid, User: user, Audiences: []string{"sandgate"}})
		return ctx
	}
	addr, srv, records, unchanged := newMatrix(t, func(c *Config) {
		accounts, err := authn.OpenAccounts(t.Context(), authn.AccountsConfig{Audience: "sandgate", Keys: s.keySet,
			Rules: []authn.AccountRule{{Namespace: "blue", Name: "reader", Role: authn.RoleReader}, {Namespace: "blue", Name: "ann"}, {Namespace: "red", Name: "*"}},
			Review: func(_ context.Context, token, _ string) (authn.Review, error) {
				if r, ok := known.Load(token); ok {
					return r.(authn.Review), nil
				}
				return authn.Review{}, io.ErrUnexpectedEOF
			}}, c.Logger)
		if err != nil {
			t.Fatal(err)
		}
		c.Authenticator = authn.Bearer{accounts}
	})
	conn := dialServer(t, addr, insecure.NewCredentials())
	refusedCalls(account("blue", "ann", true), t, srv, conn, records, map[string]context.Context{
		"none": t.Context(), "malformed": metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer a.b.c"),
		"wrong": account("blue", "ann", false), "other audience": s.bearer(map[string]any{"sub": "system:serviceaccount:blue:ann", "aud": "x"}),
		"expired": s.bearer(map[string]any{"sub": "system:serviceaccount:blue:ann", "exp": 1}),
	}, unchanged)
	t.Run("no rule", func(t *testing.T) {
		ctx := account("blue", "bob", true)
		for _, m := range ownCalls(t, srv) {
			got, err := m.call(ctx, conn)
			records.wantForbidden(t, m, got, err)
		}
		unchanged(t)
	})
	t.Run("reader", func(t *testing.T) {
		readerCalls(account("blue", "reader", true), t, srv, conn, records)
		unchanged(t)
	})
	t.Run("other tenant", func(t *testing.T) {
		otherTenant(account("red", "eve", true), t, srv, conn)
		unchanged(t)
	})
	t.Run("no API server", func(t *testing.T) {
		ctx := s.bearer(map[string]any{"sub": "system:serviceaccount:blue:ann"})
		for _, m := range ownCalls(t, srv) {
			_, err := m.call(ctx, conn)
			records.refused(m, "AUTHENTICATION_UNAVAILABLE")
			if code, r := reason(t, err); code != codes.Unavailable || r != "AUTHENTICATION_UNAVAILABLE" {
				t.Errorf("%s: got %v", m.full, err)
			}
		}
		unchanged(t)
	})
	records.complete(t, srv)
}

// A running call goes on while its credentials can't be checked.
func TestUnavailableIssuerEndsNoCall(t *testing.T) {
	checks := make(chan struct{}, 100)
	var away atomic.Bool
	h := newHarness(t, func(c *Config) {
		c.Timing.Recheck = 10 * time.Millisecond
		c.Authenticator = changing{func() (authn.Principal, error) {
			if !away.Load() {
				return authn.Principal{Name: "ann", Tenant: "blue"}, nil
			}
			return authn.Principal{}, &authn.Pending{Wait: func(context.Context) (authn.Principal, error) {
				checks <- struct{}{}
				return authn.Principal{}, fmt.Errorf("%w: down", authn.ErrUnavailable)
			}}
		}}
	})
	began := make(chan struct{}, 1)
	h.provider.script.execute = func(_ *scriptedAgent, _ *sandboxv1.ExecuteRequest, out emitter) error {
		err := out.started(0)
		began <- struct{}{}
		<-out.stream.Context().Done()
		return err
	}
	h.create("a")
	ctx, cancel := context.WithCancelCause(t.Context())
	stream, err := h.client.Execute(ctx, &sandboxv1.ExecuteRequest{SandboxId: "a", Command: &sandboxv1.ExecuteRequest_Shell{Shell: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	<-began
	away.Store(true)
	for range 3 {
		<-checks
	}
	_, err = h.client.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{})
	wantReason(t, err, "AUTHENTICATION_UNAVAILABLE")
	cancel(nil)
	for err = nil; err == nil; {
		_, err = stream.Recv()
	}
	if code := status.Code(err); code != codes.Canceled {
		t.Fatalf("the running call ended with %v", err)
	}
}
