package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// testAuthority signs certificates into a directory.
type testAuthority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newTestAuthority(t *testing.T) *testAuthority {
	a := &testAuthority{}
	a.pem, _ = a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign})
	return a
}

// sign returns a certificate and its key, self-signed for an authority that has
// none yet.
func (a *testAuthority) sign(t *testing.T, c *x509.Certificate) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if a.cert == nil {
		a.cert, a.key = c, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert == c {
		if a.cert, err = x509.ParseCertificate(raw); err != nil {
			t.Fatal(err)
		}
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// A new authority for clients counts without a restart, and the old one no more,
// also for a client that could resume its session.
func TestClientAuthorityIsReloaded(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, raw []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, second := newTestAuthority(t), newTestAuthority(t)
	cert, key := first.sign(t, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	c := config{TLS: tlsConfig{Cert: write("cert", cert), Key: write("key", key), ClientCA: write("ca", first.pem)}}
	cfg, err := c.tls(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if conn.(*tls.Conn).HandshakeContext(context.Background()) == nil {
				_, _ = conn.Write([]byte("x"))
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })

	roots := x509.NewCertPool()
	roots.AddCert(first.cert)
	client := func(a *testAuthority) func() bool {
		cert, key := a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "ann", Organization: []string{"blue"}},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		cfg := &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}, ClientSessionCache: tls.NewLRUClientSessionCache(4),
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }}
		return func() bool {
			conn, err := tls.Dial("tcp", l.Addr().String(), cfg)
			if err != nil {
				return false
			}
			defer conn.Close()
			n, _ := conn.Read(make([]byte, 1))
			return n == 1
		}
	}
	old, renewed := client(first), client(second)
	if !old() || renewed() {
		t.Fatal("the first authority must count, and no other")
	}
	write("ca", second.pem)
	for late := time.Now().Add(20 * time.Second); old() || !renewed(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the new authority does not count, or the old one still does")
		}
	}
	write("ca", []byte("half"))
	time.Sleep(1100 * time.Millisecond)
	if old() || !renewed() {
		t.Fatal("a broken file must change nothing")
	}
}
