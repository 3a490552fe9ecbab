package authn

import (
	"context"
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Certificates authenticates by the client certificate that TLS has verified.
// The name is the first URI, DNS name or e-mail address of the certificate,
// otherwise its common name. The tenant is its organization, of which there
// must be exactly one. It is never the name: then anyone with a name from the
// authority could choose that of another tenant. The organizational unit
// "sandgate-reader", "sandgate-user" or "sandgate-operator" is the role; without
// one it is RoleUser.
type Certificates struct {
	// Revoked are certificates that are not accepted. Nil: none.
	Revoked *Revocations
}

// certificatesName is the name of Certificates, and the issuer of their principals.
const certificatesName = "certificates"

// unitPrefix begins the organizational units that name a role.
const unitPrefix = "sandgate-"

var _ Authenticator = Certificates{}

// Name implements Authenticator.
func (Certificates) Name() string { return certificatesName }

// Authenticate implements Authenticator.
func (a Certificates) Authenticate(ctx context.Context) (Principal, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Principal{}, ErrNoCredentials
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return Principal{}, ErrNoCredentials
	}
	leaf := info.State.VerifiedChains[0][0]
	// A connection may outlive the certificate that opened it.
	if time.Now().After(leaf.NotAfter) {
		return Principal{}, fmt.Errorf("the client certificate: %w", ErrExpired)
	}
	if a.Revoked != nil {
		if err := a.Revoked.check(info.State.VerifiedChains); err != nil {
			return Principal{}, err
		}
	}
	return principalOf(leaf)
}

func principalOf(c *x509.Certificate) (Principal, error) {
	p := Principal{Issuer: certificatesName}
	switch {
	case len(c.URIs) > 0:
		p.Name = c.URIs[0].String()
	case len(c.DNSNames) > 0:
		p.Name = c.DNSNames[0]
	case len(c.EmailAddresses) > 0:
		p.Name = c.EmailAddresses[0]
	default:
		p.Name = c.Subject.CommonName
	}
	if p.Name == "" {
		return Principal{}, fmt.Errorf("%w: the certificate has no name", ErrUnknownCredentials)
	}
	o := c.Subject.Organization
	if len(o) != 1 || o[0] == "" {
		return Principal{}, fmt.Errorf("%w: the certificate of %q must have one organization (O), the tenant", ErrUnknownCredentials, p.Name)
	}
	p.Tenant = o[0]
	found := false
	for _, unit := range c.Subject.OrganizationalUnit {
		name, ok := strings.CutPrefix(unit, unitPrefix)
		if !ok {
			continue
		}
		role, err := ParseRole(name)
		if err != nil || found {
			return Principal{}, fmt.Errorf("%w: the certificate of %q must name one role in its organizational units (OU)", ErrUnknownCredentials, p.Name)
		}
		p.Role, found = role, true
	}
	return p, nil
}
