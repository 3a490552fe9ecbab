package egress

import (
	"container/list"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"time"
)

const (
	leafValid = 7 * 24 * time.Hour
	leafRenew = 24 * time.Hour // before its end
	clockSkew = time.Hour
	// maxLeaves bounds the certificates that one authority keeps, 1 KiB each.
	maxLeaves = 64
)

// Authority is the certificate authority of one sandbox. It signs certificates
// for the hosts whose connections are intercepted, and only that sandbox trusts
// it. It is safe for concurrent use.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	leafKey     *ecdsa.PrivateKey // one for all hosts, never stored

	mu     sync.Mutex
	leaves map[string]*list.Element // of *leaf, by host
	recent *list.List               // the latest used first
}

type leaf struct {
	host        string
	certificate *tls.Certificate
}

// Authorities derives the authorities of sandboxes from a secret of the server.
// Every server with that secret derives the same ones, also after a restart, so
// no key is stored. It is safe for concurrent use.
type Authorities struct {
	secret []byte

	mu     sync.Mutex
	recent map[string]*Authority
}

// minRootSecret is the least length of the secret, in bytes.
const minRootSecret = 16

// maxAuthorities bounds the authorities that are kept, a few KiB each.
const maxAuthorities = 1024

// NewAuthorities returns the authorities of a secret. It returns an error if the
// secret could be guessed.
func NewAuthorities(secret []byte) (*Authorities, error) {
	if len(secret) < minRootSecret {
		return nil, fmt.Errorf("the secret has %d bytes; it needs at least %d", len(secret), minRootSecret)
	}
	return &Authorities{secret: secret, recent: make(map[string]*Authority)}, nil
}

// For returns the authority of one incarnation of a sandbox.
func (s *Authorities) For(tenant, id, incarnation string) (*Authority, error) {
	name := strings.Join([]string{tenant, id, incarnation}, "\x00")
	s.mu.Lock()
	defer s.mu.Unlock()
	if found, ok := s.recent[name]; ok {
		return found, nil
	}
	made, err := deriveAuthority(s.secret, name)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	if len(s.recent) >= maxAuthorities {
		for other := range s.recent {
			delete(s.recent, other)
			break
		}
	}
	s.recent[name] = made
	return made, nil
}

// The validity of authorities does not depend on when a server derives them. Their
// end is the last that UTCTime can express.
var (
	authorityFrom  = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	authorityUntil = time.Date(2049, 12, 31, 23, 59, 59, 0, time.UTC)
)

// deriveAuthority derives key and certificate, byte for byte the same at each
// time.
func deriveAuthority(secret []byte, name string) (*Authority, error) {
	// A scalar and a serial number. 48 bytes modulo the order of P-256 have a bias
	// below 2^-128.
	const scalarBytes, serialBytes = 48, 16
	material, err := hkdf.Key(sha256.New, secret, nil, "sandgate egress authority\x00"+name, scalarBytes+serialBytes)
	if err != nil {
		return nil, err
	}
	curve := elliptic.P256()
	order := new(big.Int).Sub(curve.Params().N, big.NewInt(1))
	scalar := new(big.Int).Mod(new(big.Int).SetBytes(material[:scalarBytes]), order)
	scalar.Add(scalar, big.NewInt(1)) // 1 to N-1
	key, err := ecdsa.ParseRawPrivateKey(curve, scalar.FillBytes(make([]byte, 32)))
	if err != nil {
		return nil, err
	}
	serial := material[scalarBytes:]
	serial[0] &= 0x7f // positive
	template := &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial),
		// The name is unique, so that a store with several has no two alike.
		Subject:               pkix.Name{CommonName: "Sandgate sandbox " + hex.EncodeToString(serial)},
		NotBefore:             authorityFrom,
		NotAfter:              authorityUntil,
		KeyUsage:              x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	// Without randomness, the signature is deterministic (RFC 6979).
	der, err := x509.CreateCertificate(nil, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	leafKey, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Authority{
		certificate: certificate, key: key, leafKey: leafKey,
		leaves: map[string]*list.Element{}, recent: list.New(),
	}, nil
}

// PEM returns the certificate, for the sandbox's list of authorities.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}

// leafFor returns a certificate for the host.
func (a *Authority) leafFor(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if found, ok := a.leaves[host]; ok {
		kept := found.Value.(*leaf)
		if now.Before(kept.certificate.Leaf.NotAfter.Add(-leafRenew)) {
			a.recent.MoveToFront(found)
			return kept.certificate, nil
		}
		a.forget(found)
	}
	made, err := a.sign(host, now)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", host, err)
	}
	a.leaves[host] = a.recent.PushFront(&leaf{host: host, certificate: made})
	if a.recent.Len() > maxLeaves {
		a.forget(a.recent.Back())
	}
	return made, nil
}

func (a *Authority) forget(e *list.Element) {
	delete(a.leaves, a.recent.Remove(e).(*leaf).host)
}

func (a *Authority) sign(host string, now time.Time) (*tls.Certificate, error) {
	template := &x509.Certificate{
		DNSNames:    []string{host},
		NotBefore:   now.Add(-clockSkew),
		NotAfter:    now.Add(leafValid),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, a.leafKey.Public(), a.key)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der, a.certificate.Raw}, PrivateKey: a.leafKey, Leaf: parsed}, nil
}
