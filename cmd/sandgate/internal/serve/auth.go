package serve

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/sandgate/sandgate/server/authn"
)

// authConfig configures how callers with tokens are authenticated.
type authConfig struct {
	TokensFile string         `yaml:"tokens_file" flag:"tokens-file" help:"file of hashed tokens, made by \"sandgate token new\"; reloaded when it changes"`
	OIDC       []issuerConfig `yaml:"oidc" help:"OpenID Connect issuers whose signed tokens (JWT) authenticate callers (default none)"`
	Kubernetes accountsConfig `yaml:"kubernetes"`
}

type issuerConfig struct {
	Issuer            string            `yaml:"issuer" help:"URL of the issuer, as its tokens name it (iss); https, except on loopback"`
	Audiences         []string          `yaml:"audiences" help:"audiences (aud) that a token can be for; at least one"`
	AuthorizedParties []string          `yaml:"authorized_parties" help:"clients (azp) that a token can be issued to (default any; of a token for several audiences, one of audiences)"`
	CAFile            string            `yaml:"ca_file" help:"PEM file of the authorities for the issuer's certificate (default the system's)"`
	ClockSkew         time.Duration     `yaml:"clock_skew" help:"by how much the issuer's clock can differ, at most 5m (default 30s)" min:"0s" max:"5m"`
	PrincipalClaim    string            `yaml:"principal_claim" help:"claim of the caller's name; a path has dots (default sub)"`
	Tenant            string            `yaml:"tenant" help:"tenant of all callers; this or tenant_claim"`
	TenantClaim       string            `yaml:"tenant_claim" help:"claim of the caller's tenant, one text"`
	TenantPrefix      string            `yaml:"tenant_prefix" help:"text before the claim's tenant, which keeps tenants of several issuers apart (default none)"`
	RoleClaim         string            `yaml:"role_claim" help:"claim of the caller's roles or groups, a text or a list"`
	Roles             map[string]string `yaml:"roles" help:"roles by values of role_claim; the greatest one counts" enum:"reader user operator"`
	Role              string            `yaml:"role" help:"role without a match: reader, user or operator (default user without role_claim, otherwise the caller is rejected)" enum:"reader user operator"`
	RequiredClaims    map[string]string `yaml:"required_claims" help:"claims and the values that they must have (default none)"`
}

type accountsConfig struct {
	Audience   string          `yaml:"audience" help:"audience of service account tokens, which then authenticate callers by TokenReview (default none are accepted)"`
	Kubeconfig string          `yaml:"kubeconfig" help:"kubeconfig file of the cluster that reviews them (default kubernetes.kubeconfig)"`
	Context    string          `yaml:"context" help:"context of the kubeconfig (default kubernetes.context)"`
	Accounts   []accountConfig `yaml:"accounts" help:"service accounts that are accepted; the first that matches counts"`
}

type accountConfig struct {
	Namespace string `yaml:"namespace" help:"namespace of the account; \"*\" stands for all"`
	Name      string `yaml:"name" help:"name of the account; \"*\" stands for all"`
	Tenant    string `yaml:"tenant" help:"tenant of the account (default its namespace)"`
	Role      string `yaml:"role" help:"reader, user or operator (default user)" enum:"reader user operator"`
}

// bearer reports whether callers can have tokens.
func (a authConfig) bearer() bool {
	return a.TokensFile != "" || len(a.OIDC) > 0 || a.Kubernetes.Audience != ""
}

// authenticator returns nil if no authentication is configured. It fetches the keys
// of issuers until ctx ends. certificates counts if there are client authorities.
func (c config) authenticator(ctx context.Context, certificates authn.Certificates, logger *slog.Logger) (authn.Authenticator, error) {
	var bearer authn.Bearer
	if len(c.Auth.OIDC) > 0 {
		oidc, err := openIssuers(ctx, c.Auth.OIDC, logger)
		if err != nil {
			return nil, fmt.Errorf("auth.oidc: %w", err)
		}
		bearer = append(bearer, oidc)
	}
	if c.Auth.Kubernetes.Audience != "" {
		accounts, err := c.accounts(ctx, logger)
		if err != nil {
			return nil, fmt.Errorf("auth.kubernetes: %w", err)
		}
		bearer = append(bearer, accounts)
	} else if len(c.Auth.Kubernetes.Accounts) > 0 {
		return nil, fmt.Errorf("auth.kubernetes: %w", errNoAudience)
	}
	if c.Auth.TokensFile != "" {
		tokens, err := authn.OpenTokens(c.Auth.TokensFile, logger)
		if err != nil {
			return nil, err
		}
		bearer = append(bearer, tokens)
	}
	var any authn.Any
	if len(bearer) > 0 {
		any = append(any, bearer)
	}
	if c.TLS.ClientCA != "" {
		any = append(any, certificates)
	}
	if len(any) == 0 {
		return nil, nil
	}
	return any, nil
}

var errNoAudience = errors.New("accounts need an audience")

func openIssuers(ctx context.Context, configs []issuerConfig, logger *slog.Logger) (*authn.OIDC, error) {
	var issuers []authn.IssuerConfig
	for _, c := range configs {
		i, err := c.issuer()
		if err != nil {
			return nil, fmt.Errorf("issuer %q: %w", c.Issuer, err)
		}
		issuers = append(issuers, i)
	}
	return authn.OpenOIDC(ctx, issuers, logger)
}

func (c issuerConfig) issuer() (authn.IssuerConfig, error) {
	i := authn.IssuerConfig{
		URL: c.Issuer, Audiences: c.Audiences, AuthorizedParties: c.AuthorizedParties, ClockSkew: c.ClockSkew,
		Mapping: authn.Mapping{
			Principal: c.PrincipalClaim, Tenant: c.Tenant, TenantClaim: c.TenantClaim, TenantPrefix: c.TenantPrefix,
			RoleClaim: c.RoleClaim, Require: c.RequiredClaims,
		},
	}
	if c.CAFile != "" {
		raw, err := os.ReadFile(c.CAFile)
		if err != nil {
			return i, fmt.Errorf("ca_file: %w", err)
		}
		i.Authorities = x509.NewCertPool()
		if !i.Authorities.AppendCertsFromPEM(raw) {
			return i, errors.New("ca_file: holds no certificate")
		}
	}
	for value, name := range c.Roles {
		role, err := authn.ParseRole(name)
		if err != nil {
			return i, fmt.Errorf("roles: %w", err)
		}
		if i.Mapping.Roles == nil {
			i.Mapping.Roles = make(map[string]authn.Role)
		}
		i.Mapping.Roles[value] = role
	}
	if c.Role != "" {
		role, err := authn.ParseRole(c.Role)
		if err != nil {
			return i, fmt.Errorf("role: %w", err)
		}
		i.Mapping.Role = &role
	}
	return i, nil
}
