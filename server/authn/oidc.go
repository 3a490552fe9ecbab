package authn

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// maxToken bounds a signed token, in bytes.
const maxToken = 8 << 10

// algorithms are those of asymmetric keys. A token that a caller could sign with a
// public key or without any is not among them.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// Bounds of IssuerConfig.ClockSkew.
const (
	defaultClockSkew = 30 * time.Second
	maxClockSkew     = 5 * time.Minute
)

// IssuerConfig configures an OpenID Connect issuer.
type IssuerConfig struct {
	// URL is the issuer as its tokens name it. Its metadata is at
	// URL/.well-known/openid-configuration.
	URL string
	// Audiences are those that a token may be for. At least one must be given.
	Audiences []string
	// AuthorizedParties are the clients that tokens may be issued to (the claim
	// "azp"). Nil: any, and those of a token for several audiences must be among
	// Audiences.
	AuthorizedParties []string
	// Authorities signed the certificate of the issuer. Nil: those of the system.
	Authorities *x509.CertPool
	// ClockSkew is by how much the issuer's clock may differ. Default: 30 s; at
	// most 5 min.
	ClockSkew time.Duration
	// Mapping turns claims into a principal.
	Mapping Mapping
}

// issuer is a configured issuer and its keys.
type issuer struct {
	IssuerConfig
	keys *issuerKeys
}

// OIDC authenticates by tokens that OpenID Connect issuers signed. Tokens are
// checked with keys in memory, which a goroutine for each issuer fetches.
type OIDC struct {
	issuers  map[string]*issuer
	verified *cache[verifiedToken]
	slots    signatureSlots
}

var _ TokenAuthenticator = (*OIDC)(nil)

// verifiedToken is a token that was found valid.
type verifiedToken struct {
	principal Principal
	issuer    *issuer
	keys      *keySet
	from, to  time.Time
}

// OpenOIDC returns an authenticator for the tokens of these issuers. It fetches
// their keys until ctx ends, and does not wait for them: an issuer may be down.
func OpenOIDC(ctx context.Context, issuers []IssuerConfig, log *slog.Logger) (*OIDC, error) {
	if err := CheckIssuers(issuers); err != nil {
		return nil, err
	}
	o := &OIDC{issuers: make(map[string]*issuer), verified: newCache[verifiedToken](), slots: newSignatureSlots()}
	for _, c := range issuers {
		if c.ClockSkew == 0 {
			c.ClockSkew = defaultClockSkew
		}
		o.issuers[c.URL] = &issuer{IssuerConfig: c}
	}
	for _, i := range o.issuers {
		i.keys = openKeys(ctx, i.URL, newHTTPClient(i.Authorities), log)
	}
	return o, nil
}

// CheckIssuers returns an error if OpenOIDC would refuse these issuers.
func CheckIssuers(issuers []IssuerConfig) error {
	seen := make(map[string]bool)
	for _, c := range issuers {
		if err := c.check(); err != nil {
			return fmt.Errorf("issuer %q: %w", c.URL, err)
		}
		if seen[c.URL] {
			return fmt.Errorf("issuer %q is configured twice", c.URL)
		}
		seen[c.URL] = true
	}
	return nil
}

func (c IssuerConfig) check() error {
	if err := checkIssuerURL(c.URL); err != nil {
		return err
	}
	if len(c.Audiences) == 0 || slices.Contains(c.Audiences, "") {
		return errors.New("audiences must be given")
	}
	if c.ClockSkew < 0 || c.ClockSkew > maxClockSkew {
		return fmt.Errorf("the clock skew must lie between 0 and %s", maxClockSkew)
	}
	return c.Mapping.check()
}

func newHTTPClient(authorities *x509.CertPool) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities}
	// Requests are minutes apart.
	transport.DisableKeepAlives = true
	return &http.Client{Transport: transport, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) > 3 {
			return errors.New("too many redirects")
		}
		return checkIssuerURL(req.URL.Scheme + "://" + req.URL.Host)
	}}
}

// Name implements TokenAuthenticator.
func (*OIDC) Name() string { return "oidc" }

// AuthenticateToken implements TokenAuthenticator.
func (o *OIDC) AuthenticateToken(token string) (Principal, error) {
	if !isSigned(token) {
		return Principal{}, ErrNoCredentials
	}
	hash := tokenHash(sha256.Sum256([]byte(token)))
	if v, ok := o.verified.get(hash); ok {
		now, keys := time.Now(), v.issuer.keys.current()
		switch {
		case !now.Before(v.to):
			return Principal{}, fmt.Errorf("the token of %q: %w", v.principal.Name, ErrExpired)
		case keys == v.keys && !now.Before(v.from):
			return v.principal, nil
		}
	}
	t, err := o.parse(token)
	if err != nil {
		return Principal{}, err
	}
	set := t.issuer.keys.current()
	if set == nil || len(set.candidates(t.keyID)) == 0 {
		return Principal{}, &Pending{Wait: func(ctx context.Context) (Principal, error) {
			if err := t.issuer.keys.refresh(ctx); err != nil {
				return Principal{}, fmt.Errorf("issuer %q: %w: %w", t.issuer.URL, ErrUnavailable, err)
			}
			if set := t.issuer.keys.current(); set != nil {
				return o.verify(hash, t, set)
			}
			return Principal{}, fmt.Errorf("issuer %q: %w", t.issuer.URL, ErrUnavailable)
		}}
	}
	return o.verify(hash, t, set)
}

// isSigned reports whether a token has the form of a signed one.
func isSigned(token string) bool { return strings.Count(token, ".") == 2 }

// unverified is a token whose signature has not been checked. Nothing that it
// claims counts.
type unverified struct {
	*jwt.JSONWebToken
	issuer *issuer
	keyID  string
}

// parse returns a token of a configured issuer that is for this server and valid
// now, if its signature is. It returns ErrNoCredentials for others' tokens.
func (o *OIDC) parse(token string) (unverified, error) {
	parsed, claims, err := parseUnverified(token)
	if err != nil {
		return unverified{}, err
	}
	i := o.issuers[claims.Issuer]
	if i == nil {
		return unverified{}, ErrNoCredentials
	}
	return unverified{JSONWebToken: parsed, issuer: i, keyID: parsed.Headers[0].KeyID}, i.checkClaims(claims)
}

// parseUnverified returns a token and its claims, which do not count yet. It
// returns ErrNoCredentials for what is no token with an allowed algorithm.
func parseUnverified(token string) (*jwt.JSONWebToken, tokenClaims, error) {
	var claims tokenClaims
	if len(token) > maxToken {
		return nil, claims, fmt.Errorf("%w: the token is larger than %d bytes", ErrUnknownCredentials, maxToken)
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil || len(parsed.Headers) != 1 || parsed.UnsafeClaimsWithoutVerification(&claims) != nil {
		return nil, claims, ErrNoCredentials
	}
	// Logout tokens and security events have the same issuers and keys.
	kind, _ := parsed.Headers[0].ExtraHeaders[jose.HeaderType].(string)
	switch strings.TrimPrefix(strings.ToLower(kind), "application/") {
	case "", "jwt", "at+jwt":
		return parsed, claims, nil
	default:
		return nil, claims, fmt.Errorf("%w: the token has the type %q", ErrUnknownCredentials, clip(kind))
	}
}

func clip(s string) string { return s[:min(len(s), 32)] }

// tokenClaims are the claims that decide whether a token is valid here and now.
type tokenClaims struct {
	jwt.Claims
	AuthorizedParty string `json:"azp"`
}

// checkClaims returns an error unless the token is for this server, from an allowed
// client, and valid now.
func (i *issuer) checkClaims(c tokenClaims) error {
	now := time.Now()
	switch {
	case c.Expiry == nil:
		return fmt.Errorf("%w: the token does not expire", ErrUnknownCredentials)
	case !now.Before(c.Expiry.Time().Add(i.ClockSkew)):
		return fmt.Errorf("a token of %q: %w", i.URL, ErrExpired)
	case c.NotBefore != nil && now.Before(c.NotBefore.Time().Add(-i.ClockSkew)), c.IssuedAt != nil && now.Before(c.IssuedAt.Time().Add(-i.ClockSkew)):
		return fmt.Errorf("%w: the token is not valid yet; compare the clocks of issuer and server", ErrUnknownCredentials)
	case !slices.ContainsFunc(i.Audiences, c.Audience.Contains):
		return fmt.Errorf("%w: the token is for another audience", ErrUnknownCredentials)
	}
	parties := i.AuthorizedParties
	if parties == nil && len(c.Audience) > 1 {
		parties = i.Audiences
	}
	if parties != nil && !slices.Contains(parties, c.AuthorizedParty) {
		return fmt.Errorf("%w: the token was issued to another client (azp)", ErrUnknownCredentials)
	}
	return nil
}

// verify checks the signature and maps the claims.
func (o *OIDC) verify(hash tokenHash, t unverified, set *keySet) (Principal, error) {
	var claims tokenClaims
	var all map[string]any
	if err := o.slots.checkSignature(t.JSONWebToken, set, &claims, &all); err != nil {
		return Principal{}, fmt.Errorf("issuer %q: %w", t.issuer.URL, err)
	}
	p, err := t.issuer.Mapping.principal(all)
	if err != nil {
		return Principal{}, fmt.Errorf("issuer %q: %w", t.issuer.URL, err)
	}
	p.Issuer = t.issuer.URL
	v := verifiedToken{principal: p, issuer: t.issuer, keys: set, to: claims.Expiry.Time().Add(t.issuer.ClockSkew)}
	for _, start := range []*jwt.NumericDate{claims.NotBefore, claims.IssuedAt} {
		if start != nil && start.Time().Add(-t.issuer.ClockSkew).After(v.from) {
			v.from = start.Time().Add(-t.issuer.ClockSkew)
		}
	}
	o.verified.put(hash, v)
	return p, nil
}
