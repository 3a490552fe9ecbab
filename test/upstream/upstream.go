// Package upstream makes what tests of the network mode PROXY need to be an upstream
// whose TLS the server ends.
package upstream

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/secret"
)

// Certificate returns a certificate for the names, which it adds to roots.
func Certificate(t testing.TB, roots *x509.CertPool, names ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "upstream"}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(certificate)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Trusted returns a certificate for a name, and a change of a server's configuration
// that makes the server trust it and gives it a secret for that name.
func Trusted(t testing.TB, name string) (*tls.Certificate, func(*server.Config)) {
	t.Helper()
	roots := x509.NewCertPool()
	certificate := Certificate(t, roots, name)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(rand.Text()), 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := secret.New([]secret.Entry{{Name: "upstream", Tenants: []string{"*"}, Hosts: []string{name}, File: file}})
	if err != nil {
		t.Fatal(err)
	}
	return &certificate, func(c *server.Config) { c.Roots, c.Secrets = roots, store }
}
