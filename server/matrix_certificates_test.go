package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
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
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign})
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

// revoke writes a list of revoked certificates to a file.
func (a *authority) revoke(path string, revoked ...*tls.Certificate) {
	a.t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(time.Now().UnixNano()), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}
	for _, c := range revoked {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: c.Leaf.SerialNumber, RevocationTime: time.Now()})
	}
	raw, err := x509.CreateRevocationList(rand.Reader, list, a.cert, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(path, pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: raw}))
}

// write replaces a file in one step.
func (a *authority) write(path string, content []byte) {
	a.t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", content, 0o600), os.Rename(path+".new", path)); err != nil {
		a.t.Fatal(err)
	}
}

// revokeRunning revokes a certificate while a call runs, which ends within 5 s, on a
// connection that stays open.
func revokeRunning(t *testing.T, conn *grpc.ClientConn, revoke func()) {
	t.Helper()
	client := sandboxv1.NewSandboxServiceClient(conn)
	watch, err := client.WatchSandboxes(t.Context(), &sandboxv1.WatchSandboxesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Header(); err != nil {
		t.Fatalf("before it is revoked: %v", err)
	}
	revoke()
	began := time.Now()
	for err == nil {
		_, err = watch.Recv()
	}
	if code, why := reason(t, err); code != codes.Unauthenticated || why != "CREDENTIALS_INVALID" {
		t.Fatalf("a running call ended with %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a running call ended after %v", took)
	}
}

// refusedWithRecords makes every call. All are refused for their credentials, and have
// records of callers without a tenant.
func refusedWithRecords(t *testing.T, srv *Server, conn *grpc.ClientConn, records *matrixRecords) {
	t.Helper()
	for _, m := range methods(t, srv) {
		_, err := m.call(t.Context(), conn)
		records.wantRefused(t, m, err)
		if operation, ok := strings.CutPrefix(m.full, "/sandbox.v1.SandboxService/"); ok && m.desc != nil {
			records.want(t, refusal{"CREDENTIALS_INVALID", "", operation})
		}
	}
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
	gone := ca.sign(named("ann", "blue"))
	lists := filepath.Join(t.TempDir(), "lists")
	ca.revoke(lists)
	authorities := filepath.Join(t.TempDir(), "authorities")
	ca.write(authorities, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}))
	addr, srv, records, unchanged := newMatrix(t, func(c *Config) {
		var err error
		if c.Revocations, err = authn.OpenRevocations(lists, authorities, c.Logger); err != nil {
			t.Fatal(err)
		}
		c.Authenticator, c.Timing.Recheck = authn.Certificates{Revoked: c.Revocations}, 10*time.Millisecond
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
			Certificates: []tls.Certificate{*ca.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "server"},
				IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})}}
	})
	dial := func(cert *tls.Certificate) *grpc.ClientConn {
		cfg := &tls.Config{RootCAs: roots}
		if cert != nil {
			// As an attacker does: send it whatever the server asks for.
			cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
		}
		return dialServer(t, addr, credentials.NewTLS(cfg))
	}
	// First: the number of records without a tenant is bounded.
	t.Run("revoked", func(t *testing.T) {
		conn := dial(gone)
		revokeRunning(t, conn, func() { ca.revoke(lists, gone) })
		records.want(t, refusal{"CREDENTIALS_INVALID", "blue", "WatchSandboxes"})
		refusedWithRecords(t, srv, conn, records)
		unchanged(t)
	})
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
					records.wantRefused(t, m, err)
				} else if status.Code(err) != codes.Unavailable {
					t.Errorf("%s: got %v", m.full, err)
				}
			}
			unchanged(t)
		})
	}
	t.Run("reader", func(t *testing.T) {
		reader := with(named("bob", "blue"), func(c *x509.Certificate) { c.Subject.OrganizationalUnit = []string{"sandgate-reader"} })
		readerCalls(t.Context(), t, srv, dial(ca.sign(reader)), records)
		unchanged(t)
	})
	t.Run("other tenant", func(t *testing.T) {
		otherTenant(t.Context(), t, srv, dial(ca.sign(named("eve", "red"))))
		unchanged(t)
	})
	records.complete(t, srv)
}
