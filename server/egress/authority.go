package egress

import (
	"container/list"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	authorityValid = 10 * 365 * 24 * time.Hour // longer than any sandbox lives
	leafValid      = 7 * 24 * time.Hour
	leafRenew      = 24 * time.Hour // before its end
	clockSkew      = time.Hour
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

// NewAuthority makes an authority with a key of its own. name is for people who
// read the certificate, such as the sandbox's id.
func NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "Sandgate sandbox " + shown(name)},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(authorityValid),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return newAuthority(der, key)
}

func newAuthority(der []byte, key *ecdsa.PrivateKey) (*Authority, error) {
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(certificate.PublicKey) {
		return nil, errors.New("the key does not belong to the certificate")
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Authority{
		certificate: certificate, key: key, leafKey: leafKey,
		leaves: map[string]*list.Element{}, recent: list.New(),
	}, nil
}

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

// PEM returns the certificate, for the sandbox's list of authorities.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: a.certificate.Raw})
}

// Encode returns certificate and key in PEM, for LoadAuthority. It is a secret
// of the sandbox.
func (a *Authority) Encode() ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, err
	}
	return append(a.PEM(), pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: key})...), nil
}

// LoadAuthority reads what Encode has returned. No error repeats a part of it.
func LoadAuthority(encoded []byte) (*Authority, error) {
	certificate, rest := pem.Decode(encoded)
	key, rest := pem.Decode(rest)
	if certificate == nil || key == nil || len(rest) > 0 || certificate.Type != pemCertificate || key.Type != pemKey {
		return nil, errors.New("load authority: it needs a certificate and a private key in PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(key.Bytes)
	ecKey, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok {
		return nil, errors.New("load authority: the private key is not an ECDSA key")
	}
	authority, err := newAuthority(certificate.Bytes, ecKey)
	if err != nil {
		return nil, fmt.Errorf("load authority: %w", err)
	}
	return authority, nil
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
