package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/server/authn"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	root := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign})
	a.cert, a.key = root.Leaf, root.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// sign signs a certificate, or makes it sign itself where a has none yet.
func (a *authority) sign(c *x509.Certificate) *tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	if c.NotBefore.IsZero() {
		c.NotBefore = time.Now().Add(-time.Hour)
	}
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}
}

// TestEveryRPCWithEveryCertificate calls every RPC with every kind of client certificate.
func TestEveryRPCWithEveryCertificate(t *testing.T) {
	ca, otherCA := newAuthority(t), newAuthority(t)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	named := func(cn string, o ...string) *x509.Certificate {
		return &x509.Certificate{Subject: pkix.Name{CommonName: cn, Organization: o}, ExtKeyUsage: client}
	}
	with := func(c *x509.Certificate, change func(*x509.Certificate)) *x509.Certificate {
		change(c)
		return c
	}
	var provider pooled
	addr, srv := tcpHarness(t, func(c *Config) {
		c.Preview = testURLs(t)
		c.Authenticator = authn.Certificates{}
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
			Certificates: []tls.Certificate{*ca.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "server"},
				IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})}}
		provider = pooled{c.Provider.(*scriptedProvider)}
		c.Provider = provider
	})
	unchanged := victim(t, provider.scriptedProvider)
	dial := func(cert *tls.Certificate) *grpc.ClientConn {
		cfg := &tls.Config{RootCAs: roots}
		if cert != nil {
			// As an attacker does: send it whatever the server asks for.
			cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
		}
		return dialMatrix(t, addr, credentials.NewTLS(cfg))
	}
	self := &authority{t: t}
	for name, c := range map[string]struct {
		cert *tls.Certificate
		// handshake is true where TLS already refuses, also for health.
		handshake bool
	}{
		"none":             {nil, true},
		"expired":          {ca.sign(with(named("ann", "blue"), func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })), true},
		"future":           {ca.sign(with(named("ann", "blue"), func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) })), true},
		"other authority":  {otherCA.sign(named("ann", "blue")), true},
		"self-signed":      {self.sign(named("ann", "blue")), true},
		"server's purpose": {ca.sign(with(named("ann", "blue"), func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })), true},
		"a tenant's name":  {ca.sign(named("blue")), false},
		"two tenants":      {ca.sign(named("ann", "red", "blue")), false},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(c.cert)
			for _, m := range methods(t, srv) {
				_, err := m.call(t.Context(), conn)
				if !c.handshake {
					wantRefused(t, m, err)
				} else if status.Code(err) != codes.Unavailable {
					t.Errorf("%s: got %v", m.full, err)
				}
			}
			unchanged(t)
		})
	}
	t.Run("other tenant", func(t *testing.T) {
		otherTenant(t.Context(), t, srv, dial(ca.sign(named("eve", "red"))))
		unchanged(t)
	})
}
