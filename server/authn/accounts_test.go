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
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// apiServer answers reviews of tokens that its key signed.
type apiServer struct {
	key     jose.JSONWebKey
	mu      sync.Mutex
	answer  Review
	err     error
	reviews atomic.Int32
	// hold, if set, delays answers.
	hold chan struct{}
}

func newAPIServer(t *testing.T, answer Review) *apiServer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &apiServer{key: jose.JSONWebKey{Key: key, KeyID: "cluster"}, answer: answer}
}

func (s *apiServer) keys(context.Context) ([]byte, error) {
	return json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{s.key.Public()}})
}

func (s *apiServer) review(ctx context.Context, _, audience string) (Review, error) {
	s.reviews.Add(1)
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-ctx.Done():
			return Review{}, context.Cause(ctx)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.answer
	if r.Audiences == nil {
		r.Audiences = []string{audience}
	}
	return r, s.err
}

func (s *apiServer) set(r Review, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.err = r, err
}

func newAccounts(t *testing.T, s *apiServer) *Accounts {
	t.Helper()
	return openAccounts(t, s, s.keys)
}

func openAccounts(t *testing.T, s *apiServer, keys func(context.Context) ([]byte, error)) *Accounts {
	t.Helper()
	a, err := OpenAccounts(t.Context(), AccountsConfig{Audience: "sandgate", Review: s.review, Keys: keys, Rules: []AccountRule{
		{Namespace: "ci", Name: "runner", Tenant: "build"},
		{Namespace: "ops", Name: "*", Tenant: "ops", Role: RoleOperator},
		{Namespace: "*", Name: "reader", Role: RoleReader},
	}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for read := false; !read; time.Sleep(time.Millisecond) {
		a.keys.mu.Lock()
		read = a.keys.ended > 0
		a.keys.mu.Unlock()
	}
	return a
}

// accountToken returns a token that the API server signed.
func accountToken(t *testing.T, s *apiServer, account string, audience any, lifetime time.Duration) string {
	t.Helper()
	return signed(t, jose.ES256, s.key, "JWT", accountClaims(account, audience, lifetime))
}

func accountClaims(account string, audience any, lifetime time.Duration) map[string]any {
	return map[string]any{"iss": "https://kubernetes", "sub": accountPrefix + account, "aud": audience, "exp": time.Now().Add(lifetime).Unix()}
}

func TestAccounts(t *testing.T) {
	for name, c := range map[string]struct {
		account string
		review  func(*Review)
		err     error
		want    Principal
	}{
		"by name":         {"ci:runner", nil, nil, Principal{Tenant: "build"}},
		"by namespace":    {"ops:anyone", nil, nil, Principal{Tenant: "ops", Role: RoleOperator}},
		"own tenant":      {"team-a:reader", nil, nil, Principal{Tenant: "team-a", Role: RoleReader}},
		"no rule":         {"ci:other", nil, ErrForbidden, Principal{}},
		"refused":         {"ci:runner", func(r *Review) { r.Authenticated = false }, ErrUnknownCredentials, Principal{}},
		"other audience":  {"ci:runner", func(r *Review) { r.Audiences = []string{"api"} }, ErrUnknownCredentials, Principal{}},
		"no audience":     {"ci:runner", func(r *Review) { r.Audiences = []string{} }, ErrUnknownCredentials, Principal{}},
		"a person":        {"ci:runner", func(r *Review) { r.User = "ann" }, ErrUnknownCredentials, Principal{}},
		"forged claims":   {"ops:anyone", func(r *Review) { r.User = accountPrefix + "ci:runner" }, nil, Principal{Name: accountPrefix + "ci:runner", Tenant: "build"}},
		"half an account": {"ci", nil, ErrUnknownCredentials, Principal{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t, Review{Authenticated: true, User: accountPrefix + c.account})
			if c.review != nil {
				c.review(&s.answer)
			}
			p, err := ask(t.Context(), newAccounts(t, s), accountToken(t, s, c.account, "sandgate", time.Hour))
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Fatalf("got %v %v", p, err)
			}
			if err != nil {
				return
			}
			if c.want.Issuer = "kubernetes"; c.want.Name == "" {
				c.want.Name = accountPrefix + c.account
			}
			if !p.Equal(c.want) {
				t.Fatalf("got %+v, want %+v", p, c.want)
			}
		})
	}
}

// What the API server would reject, or is no account's token, is not sent there.
func TestAccountsReviewOnlyWhatMayBeValid(t *testing.T) {
	s := newAPIServer(t, Review{Authenticated: true, User: accountPrefix + "a:reader"})
	a := newAccounts(t, s)
	forger := newAPIServer(t, Review{}).key
	strange := jose.JSONWebKey{Key: forger.Key, KeyID: "strange"}
	claims := accountClaims("a:reader", "sandgate", time.Hour)
	person := map[string]any{"sub": "ann", "aud": "sandgate", "exp": time.Now().Add(time.Hour).Unix()}
	endless := map[string]any{"sub": accountPrefix + "a:b", "aud": "sandgate"}
	for name, c := range map[string]struct {
		token string
		err   error
	}{
		"other audience": {accountToken(t, s, "a:b", "https://kubernetes.default.svc", time.Hour), ErrUnknownCredentials},
		"expired":        {accountToken(t, s, "a:b", "sandgate", -time.Second), ErrExpired},
		"no expiry":      {signed(t, jose.ES256, s.key, "JWT", endless), ErrUnknownCredentials},
		"a person":       {signed(t, jose.ES256, s.key, "JWT", person), ErrNoCredentials},
		"no JWT":         {"sgt_x", ErrNoCredentials},
		"forged":         {signed(t, jose.ES256, forger, "JWT", claims), ErrUnknownCredentials},
		"no key id":      {signed(t, jose.ES256, forger.Key, "JWT", claims), ErrUnknownCredentials},
		"unknown key":    {signed(t, jose.ES256, strange, "JWT", claims), ErrUnknownCredentials},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ask(t.Context(), a, c.token); !errors.Is(err, c.err) {
				t.Fatalf("got %v", err)
			}
		})
	}
	if n := s.reviews.Load(); n > 0 {
		t.Fatalf("%d reviews", n)
	}
}

// While the API server's keys can't be read, a review decides.
func TestReviewDecidesWithoutKeys(t *testing.T) {
	s := newAPIServer(t, Review{Authenticated: true, User: accountPrefix + "ci:runner"})
	a := openAccounts(t, s, func(context.Context) ([]byte, error) { return nil, errors.New("forbidden") })
	if p, err := ask(t.Context(), a, accountToken(t, s, "ci:runner", "sandgate", time.Hour)); err != nil || p.Tenant != "build" {
		t.Fatalf("got %v %v", p, err)
	}
}

// A flood of forged tokens leaves reviews for true ones, while reviews hang.
func TestAccountsForgedTokensTakeNoReview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, Review{Authenticated: true, User: accountPrefix + "ci:runner"})
		a := newAccounts(t, s)
		forger := newAPIServer(t, Review{}).key
		forger.KeyID = s.key.KeyID
		hold := make(chan struct{})
		s.hold = hold
		var calls sync.WaitGroup
		for n := range 10 * maxReviews {
			token := signed(t, jose.ES256, forger, "JWT", accountClaims(fmt.Sprint("ci:", n), "sandgate", time.Hour))
			calls.Go(func() {
				if _, err := ask(t.Context(), a, token); !errors.Is(err, ErrUnknownCredentials) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		calls.Go(func() {
			if _, err := ask(t.Context(), a, accountToken(t, s, "ci:runner", "sandgate", time.Hour)); err != nil {
				t.Errorf("a true token beside forged ones: %v", err)
			}
		})
		synctest.Wait()
		close(hold)
		calls.Wait()
		if n := s.reviews.Load(); n != 1 {
			t.Errorf("%d reviews", n)
		}
	})
}

// Answers count for reviewAge, and for reviewGrace while there is no new one.
func TestReviewsAreRememberedForATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		valid := Review{Authenticated: true, User: accountPrefix + "ci:runner"}
		s := newAPIServer(t, valid)
		a := newAccounts(t, s)
		token := accountToken(t, s, "ci:runner", []string{"x", "sandgate"}, time.Hour)
		want := func(reviews int32, err error) {
			t.Helper()
			if _, got := ask(t.Context(), a, token); !errors.Is(got, err) || (got == nil) != (err == nil) {
				t.Fatalf("got %v, want %v", got, err)
			}
			if n := s.reviews.Load(); n != reviews {
				t.Fatalf("%d reviews, want %d", n, reviews)
			}
		}
		want(1, nil)
		time.Sleep(reviewAge - time.Second)
		want(1, nil)
		time.Sleep(time.Second)
		want(2, nil)
		s.set(valid, errors.New("down"))
		time.Sleep(reviewGrace - time.Second)
		want(3, nil)
		time.Sleep(time.Second)
		want(4, ErrUnavailable)
		s.set(valid, nil)
		want(5, nil)
		s.set(Review{}, nil)
		time.Sleep(reviewAge)
		want(6, ErrUnknownCredentials)
		want(6, ErrUnknownCredentials)
		// A refusal is no answer to fall back on.
		s.set(valid, errors.New("down"))
		time.Sleep(reviewAge)
		want(7, ErrUnavailable)
		s.set(valid, nil)
		want(8, nil)
		time.Sleep(time.Hour)
		want(8, ErrExpired)
	})
}

// Calls with one token share a review, and reviews are bounded.
func TestCallsWithOneTokenShareABoundedReview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, Review{Authenticated: true, User: accountPrefix + "ci:runner"})
		s.hold = make(chan struct{})
		a := newAccounts(t, s)
		shared := accountToken(t, s, "ci:runner", "sandgate", time.Hour)
		var calls sync.WaitGroup
		for range 100 {
			calls.Go(func() {
				if _, err := ask(t.Context(), a, shared); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if n := s.reviews.Load(); n != 1 {
			t.Fatalf("%d reviews of one token", n)
		}
		close(s.hold)
		calls.Wait()
		s.hold = make(chan struct{})
		for n := range 100 {
			token := accountToken(t, s, fmt.Sprint("ci:", n), "sandgate", time.Hour)
			calls.Go(func() {
				if _, err := ask(t.Context(), a, token); !errors.Is(err, ErrUnavailable) {
					t.Errorf("an API server that hangs: %v", err)
				}
			})
		}
		synctest.Wait()
		if n := s.reviews.Load(); n != 1+maxReviews {
			t.Fatalf("%d reviews at once", n-1)
		}
		began := time.Now()
		calls.Wait()
		if took := time.Since(began); took > reviewTimeout {
			t.Fatalf("took %s", took)
		}
	})
}

func TestAccountsConfig(t *testing.T) {
	good := AccountRule{Namespace: "*", Name: "*"}
	for _, c := range []AccountsConfig{
		{Rules: []AccountRule{good}}, {Audience: "a"},
		{Audience: "a", Rules: []AccountRule{{Namespace: "*"}}}, {Audience: "a", Rules: []AccountRule{{Name: "*"}}},
	} {
		if _, err := OpenAccounts(t.Context(), c, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("accepted %+v", c)
		}
	}
	if got := Bearer([]TokenAuthenticator{&Accounts{}, &OIDC{}}).Name(); got != "kubernetes+oidc" {
		t.Error(got)
	}
	if !slices.Equal([]string{"operator", "reader"}, []string{RoleOperator.String(), RoleReader.String()}) {
		t.Error("names of roles")
	}
}
