package authn

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Certificates authenticates by the client certificate that TLS has verified.
// The name is the first URI, DNS name or e-mail address of the certificate,
// otherwise its common name. The tenant is its organization, of which there
// must be exactly one. It is never the name: then anyone with a name from the
// authority could choose that of another tenant.
type Certificates struct{}

var _ Authenticator = Certificates{}

// Name implements Authenticator.
func (Certificates) Name() string { return "certificates" }

// Authenticate implements Authenticator.
func (Certificates) Authenticate(ctx context.Context) (Principal, error) {
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
	return principalOf(leaf)
}

func principalOf(c *x509.Certificate) (Principal, error) {
	var p Principal
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
	return p, nil
}
