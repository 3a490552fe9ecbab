package authn

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// lister is an authority that signs revocation lists.
type lister struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newLister(t *testing.T, name string) *lister {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	l := &lister{t: t, key: key}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, NotAfter: time.Now().Add(time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err == nil {
		l.cert, err = x509.ParseCertificate(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *lister) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.cert.Raw})
}

// list returns a list of these serial numbers, which is due in an hour.
func (l *lister) list(serials ...int64) []byte { return l.listAs(nil, serials...) }

func (l *lister) listAs(change func(*x509.RevocationList), serials ...int64) []byte {
	l.t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}
	for _, s := range serials {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: big.NewInt(s), RevocationTime: time.Now()})
	}
	if change != nil {
		change(list)
	}
	raw, err := x509.CreateRevocationList(rand.Reader, list, l.cert, l.key)
	if err != nil {
		l.t.Fatal(err)
	}
	return raw
}

// call is one with a client certificate, by the chain to its authority.
func call(ctx context.Context, chains ...[]*x509.Certificate) context.Context {
	return peer.NewContext(ctx, &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: chains}}})
}

// issued is a certificate of an authority.
func (l *lister) issued(serial int64) *x509.Certificate {
	return &x509.Certificate{SerialNumber: big.NewInt(serial), RawIssuer: l.cert.RawSubject, NotAfter: time.Now().Add(24 * time.Hour),
		Subject: pkix.Name{CommonName: "ann", Organization: []string{"blue"}}}
}

func pemList(raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: raw})
}

func writeFile(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Lists in any form revoke what they name, by issuer and number, and nothing else.
func TestRevocationListsAreRead(t *testing.T) {
	one, two := newLister(t, "one"), newLister(t, "two")
	both := slices.Concat(one.pem(), two.pem())
	part := func(list *x509.RevocationList) {
		list.ExtraExtensions = []pkix.Extension{{Id: issuingDistributionPoint, Critical: true, Value: []byte{0x30, 0}}}
	}
	for name, lists := range map[string][]byte{
		"PEM":        pemList(one.list(7, 9)),
		"DER":        one.list(7),
		"two in PEM": slices.Concat([]byte("of two authorities\n"), pemList(two.list(8)), []byte("\n"), pemList(one.list(7)), []byte("\n")),
		"two in DER": slices.Concat(two.list(8), one.list(7)),
		"two of one": slices.Concat(one.list(6), one.list(7)),
		"a part":     one.listAs(part, 7),
		"out of date": one.listAs(func(l *x509.RevocationList) {
			l.ThisUpdate, l.NextUpdate = l.ThisUpdate.Add(-2*time.Hour), time.Now().Add(-time.Hour)
		}, 7),
		"a large number": one.listAs(func(l *x509.RevocationList) { l.Number = new(big.Int).Lsh(big.NewInt(1), 150) }, 7),
	} {
		t.Run(name, func(t *testing.T) {
			r, err := OpenRevocations(writeFile(t, "lists", lists), writeFile(t, "authorities", both), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			a := Certificates{Revoked: r}
			if _, err := a.Authenticate(call(t.Context(), []*x509.Certificate{one.issued(7), one.cert})); !errors.Is(err, ErrRevoked) || !errors.Is(err, ErrUnknownCredentials) {
				t.Errorf("a revoked one: %v", err)
			}
			for what, c := range map[string]*x509.Certificate{"another number": one.issued(70), "another issuer": two.issued(7)} {
				if p, err := a.Authenticate(call(t.Context(), []*x509.Certificate{c, one.cert})); err != nil || p.Name != "ann" {
					t.Errorf("%s: %v, %v", what, p, err)
				}
			}
			// An intermediate authority is one that another has issued.
			under := two.issued(99)
			if _, err := a.Authenticate(call(t.Context(), []*x509.Certificate{under, one.issued(7), one.cert})); !errors.Is(err, ErrRevoked) {
				t.Errorf("under a revoked authority: %v", err)
			}
			if _, err := a.Authenticate(call(t.Context(), []*x509.Certificate{under, one.issued(7), one.cert}, []*x509.Certificate{under, two.cert})); err != nil {
				t.Errorf("under another authority as well: %v", err)
			}
		})
	}
}

// A file that revokes less than it seems to is rejected, with the reason.
func TestRevocationListsAreRejected(t *testing.T) {
	one, namesake, unlisted := newLister(t, "one"), newLister(t, "one"), newLister(t, "two")
	good := pemList(one.list(7))
	forged := one.list(7)
	forged[len(forged)-1] ^= 1
	critical := func(id asn1.ObjectIdentifier) []pkix.Extension {
		return []pkix.Extension{{Id: id, Critical: true, Value: []byte{2, 1, 1}}}
	}
	delta := one.listAs(func(l *x509.RevocationList) { l.ExtraExtensions = critical(asn1.ObjectIdentifier{2, 5, 29, 27}) }, 7)
	indirect := one.listAs(func(l *x509.RevocationList) {
		l.RevokedCertificateEntries[0].ExtraExtensions = critical(asn1.ObjectIdentifier{2, 5, 29, 29})
	}, 7)
	for name, c := range map[string]struct {
		lists []byte
		want  string
	}{
		"empty":             {nil, "holds no revocation list"},
		"text":              {[]byte("none"), "holds no revocation list in PEM or DER"},
		"a certificate":     {one.pem(), `holds a "CERTIFICATE" beside revocation lists`},
		"cut":               {slices.Concat(good, good[:len(good)-30]), "has an incomplete PEM block"},
		"cut in DER":        {slices.Concat(one.list(), one.list()[:40]), "holds no revocation list in PEM or DER"},
		"junk":              {pemList([]byte{0x30, 0}), "revocation list 1 of 1: x509"},
		"forged":            {slices.Concat(good, pemList(forged)), `revocation list 2 of 2: the list of "CN=one" is not signed by a client authority: x509`},
		"a namesake's":      {pemList(namesake.list(7)), "is not signed by a client authority: x509"},
		"another authority": {pemList(unlisted.list(7)), `the list of "CN=two" is not signed by a client authority: no client authority has that name`},
		"changes alone":     {pemList(delta), "the critical extension 2.5.29.27 is not supported"},
		"other issuers":     {pemList(indirect), "certificate 7: the critical extension 2.5.29.29 is not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := CheckRevocations(c.lists, one.pem()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

// A new list counts within a second. A wrong one, and one that is out of date, leave in
// force what was, and the log has each once.
func TestRevocationListsAreReloaded(t *testing.T) { synctest.Test(t, testRevocationListsAreReloaded) }

func testRevocationListsAreReloaded(t *testing.T) {
	one := newLister(t, "one")
	path := writeFile(t, "lists", pemList(one.list()))
	var log bytes.Buffer
	r, err := OpenRevocations(path, writeFile(t, "authorities", one.pem()), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	a := Certificates{Revoked: r}
	want := func(what string, serial int64, revoked bool) {
		t.Helper()
		_, err := a.Authenticate(call(t.Context(), []*x509.Certificate{one.issued(serial), one.cert}))
		if errors.Is(err, ErrRevoked) != revoked || !revoked && err != nil {
			t.Errorf("%s: %d: %v", what, serial, err)
		}
	}
	put := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
	want("an empty list", 7, false)
	put(pemList(one.list(7)))
	want("a new list", 7, true)
	if next := r.NextUpdate(); next.Unix() != time.Now().Add(time.Hour-time.Second).Unix() {
		t.Errorf("due at %v", next)
	}
	put([]byte("half"))
	want("a wrong list", 7, true)
	time.Sleep(2 * time.Hour)
	want("out of date", 7, true)
	want("out of date", 8, false)
	put(pemList(one.list(8)))
	want("a list without it", 7, false)
	want("a list without it", 8, true)
	for _, text := range []string{"files cannot be read again", "is out of date and stays in force", "files can be read again"} {
		if n := strings.Count(log.String(), text); n != 1 {
			t.Errorf("%q %d times in the log: %s", text, n, log.String())
		}
	}
}
