package authn

import (
	"context"
	"crypto/x509"
	"fmt"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Certificates authenticates by the client certificate that TLS has verified.
// The name is the first URI, DNS name or e-mail address of the certificate,
// otherwise its common name; the tenant is its organization, otherwise the
// name.
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
	return principalOf(info.State.VerifiedChains[0][0])
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
		return Principal{}, fmt.Errorf("%w: the certificate names nobody", ErrUnknownCredentials)
	}
	p.Tenant = p.Name
	if o := c.Subject.Organization; len(o) > 0 && o[0] != "" {
		p.Tenant = o[0]
	}
	return p, nil
}
