package authn

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/sync/singleflight"

	"github.com/sandgate/sandgate/server/limit"
)

const (
	// reviewAge is how long the answer of a review counts: a deleted account, or
	// one whose pod was deleted, is rejected after that.
	reviewAge = 10 * time.Second
	// reviewGrace is how long a positive answer counts while no new one is to be
	// had.
	reviewGrace = time.Minute
	// reviewTimeout bounds a review.
	reviewTimeout = 5 * time.Second
	// maxReviews bounds the concurrent reviews.
	maxReviews = 16
)

// accountsName is the name of Accounts, and the issuer of their principals.
const accountsName = "kubernetes"

// accountPrefix begins the name of every service account.
const accountPrefix = "system:serviceaccount:"

// Review is an API server's answer about a token.
type Review struct {
	// Authenticated is false if the token is not valid.
	Authenticated bool
	// User is the full name of the account.
	User string
	// Audiences are those of the request that the token is for.
	Audiences []string
}

// AccountRule maps service accounts to a tenant and a role.
type AccountRule struct {
	// Namespace and Name are those of the accounts; "*" stands for all.
	Namespace, Name string
	// Tenant is the tenant. Empty: the account's namespace.
	Tenant string
	// Role is the role.
	Role Role
}

// AccountsConfig configures Accounts.
type AccountsConfig struct {
	// Audience is that which tokens must be for. It must be given: a token for the
	// API server itself would also be valid there.
	Audience string
	// Rules are tried in order; the first that matches counts. An account without
	// a rule is rejected.
	Rules []AccountRule
	// Review asks an API server about a token for an audience.
	Review func(ctx context.Context, token, audience string) (Review, error)
	// Keys reads the API server's JSON Web Key Set. Tokens that no key of it signed
	// are rejected without a review, so that whoever forges tokens keeps no account
	// waiting. While it can't be read, reviews decide alone.
	Keys func(ctx context.Context) ([]byte, error)
}

// Accounts authenticates by tokens of Kubernetes service accounts, which an API
// server reviews.
type Accounts struct {
	cfg        AccountsConfig
	keys       *issuerKeys
	signatures signatureSlots
	known      *cache[reviewed]
	flight     singleflight.Group
	slots      limit.Slots
}

var _ TokenAuthenticator = (*Accounts)(nil)

// reviewed is the answer to a review.
type reviewed struct {
	principal Principal
	err       error
	at        time.Time
}

// Check returns an error if OpenAccounts would refuse the configuration.
func (c AccountsConfig) Check() error {
	if c.Audience == "" {
		return errors.New("an audience must be given")
	}
	if len(c.Rules) == 0 {
		return errors.New("at least one account must be given")
	}
	for _, r := range c.Rules {
		if r.Namespace == "" || r.Name == "" {
			return errors.New("an account needs a namespace and a name; \"*\" stands for all")
		}
	}
	return nil
}

// OpenAccounts returns an authenticator for tokens of service accounts. It reads the
// API server's keys until ctx ends.
func OpenAccounts(ctx context.Context, cfg AccountsConfig, log *slog.Logger) (*Accounts, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	return &Accounts{
		cfg: cfg, keys: openClusterKeys(ctx, cfg.Keys, log), signatures: newSignatureSlots(),
		known: newCache[reviewed](), slots: limit.New(maxReviews),
	}, nil
}

// Name implements TokenAuthenticator.
func (*Accounts) Name() string { return accountsName }

// AuthenticateToken implements TokenAuthenticator.
func (a *Accounts) AuthenticateToken(token string) (Principal, error) {
	if !isSigned(token) {
		return Principal{}, ErrNoCredentials
	}
	parsed, claims, err := parseUnverified(token)
	if err != nil {
		return Principal{}, err
	}
	if !strings.HasPrefix(claims.Subject, accountPrefix) {
		return Principal{}, ErrNoCredentials
	}
	// The API server decides whether these claims are true. What it would reject
	// anyway is rejected here, at no cost to it.
	switch {
	case !claims.Audience.Contains(a.cfg.Audience):
		return Principal{}, fmt.Errorf("%w: the service account's token is for another audience than %q", ErrUnknownCredentials, a.cfg.Audience)
	case claims.Expiry == nil:
		return Principal{}, fmt.Errorf("%w: the service account's token does not expire", ErrUnknownCredentials)
	case !time.Now().Before(claims.Expiry.Time()):
		return Principal{}, fmt.Errorf("a service account's token: %w", ErrExpired)
	}
	hash := tokenHash(sha256.Sum256([]byte(token)))
	if r, ok := a.known.get(hash); ok && time.Since(r.at) < reviewAge {
		return r.principal, r.err
	}
	return Principal{}, &Pending{Wait: func(ctx context.Context) (Principal, error) {
		if err := a.checkSignature(ctx, parsed); err != nil {
			return Principal{}, fmt.Errorf("a service account's token: %w", err)
		}
		return a.wait(ctx, hash, token)
	}}
}

// checkSignature returns an error if the API server's keys are known and none of
// them signed the token.
func (a *Accounts) checkSignature(ctx context.Context, token *jwt.JSONWebToken) error {
	set := a.keys.current()
	if set != nil && len(set.candidates(token.Headers[0].KeyID)) == 0 {
		if err := a.keys.refresh(ctx); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		set = a.keys.current()
	}
	if set == nil {
		return nil
	}
	return a.signatures.checkSignature(token, set)
}

// wait returns the answer of a review that all calls with this token share.
func (a *Accounts) wait(ctx context.Context, hash tokenHash, token string) (Principal, error) {
	// The caller that begins the review may leave before the others.
	shared := context.WithoutCancel(ctx)
	answer := a.flight.DoChan(string(hash[:]), func() (any, error) { return a.review(shared, hash, token), nil })
	select {
	case got := <-answer:
		r := got.Val.(reviewed)
		return r.principal, r.err
	case <-ctx.Done():
		return Principal{}, context.Cause(ctx)
	}
}

// review asks the API server. While it does not answer, a former answer counts for
// reviewGrace.
func (a *Accounts) review(ctx context.Context, hash tokenHash, token string) reviewed {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	answer, err := Review{}, a.slots.Acquire(ctx)
	if err == nil {
		answer, err = a.cfg.Review(ctx, token, a.cfg.Audience)
		a.slots.Release()
	}
	if err != nil {
		if r, ok := a.known.get(hash); ok && r.err == nil && time.Since(r.at) < reviewGrace {
			return r
		}
		return reviewed{err: fmt.Errorf("the review of a service account's token: %w: %w", ErrUnavailable, err)}
	}
	r := reviewed{at: time.Now()}
	r.principal, r.err = a.principal(answer)
	a.known.put(hash, r)
	return r
}

// principal maps a reviewed account.
func (a *Accounts) principal(r Review) (Principal, error) {
	account, ok := strings.CutPrefix(r.User, accountPrefix)
	namespace, name, two := strings.Cut(account, ":")
	if !r.Authenticated || !ok || !two || !slices.Contains(r.Audiences, a.cfg.Audience) {
		return Principal{}, fmt.Errorf("%w: the API server does not know the service account's token", ErrUnknownCredentials)
	}
	for _, rule := range a.cfg.Rules {
		if (rule.Namespace != "*" && rule.Namespace != namespace) || (rule.Name != "*" && rule.Name != name) {
			continue
		}
		tenant := rule.Tenant
		if tenant == "" {
			tenant = namespace
		}
		return Principal{Name: r.User, Tenant: tenant, Role: rule.Role, Issuer: accountsName}, nil
	}
	return Principal{}, fmt.Errorf("%w: the service account %s", ErrForbidden, account)
}
