package authn

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sandgate/sandgate/server/reload"
)

// Revocations are the certificates that revocation lists name (RFC 5280). The file
// of lists and that of the authorities are read again after a change. While the new
// content is invalid, the old one stays in force.
//
// A list counts beyond its next update: the certificates in it stay revoked, and
// those that it lacks are valid. A certificate of an authority without a list is
// valid.
type Revocations struct {
	file *reload.Files[*revoked]
	log  *slog.Logger
}

// revoked is what a file of lists revokes.
type revoked struct {
	certificates map[serial]bool
	// nextUpdate is when the first of the lists is due; zero if none says.
	nextUpdate time.Time
	late       atomic.Bool // the log has that it is past
}

// serial identifies a certificate, by texts that can be a map's key.
type serial struct{ issuer, number string }

// OpenRevocations reads a file of revocation lists, in PEM or DER, and the PEM file
// of the authorities that must have signed them.
func OpenRevocations(lists, authorities string, log *slog.Logger) (*Revocations, error) {
	file, err := reload.Open(log, func(contents [][]byte) (*revoked, error) { return parseRevoked(contents[0], contents[1]) }, lists, authorities)
	if err != nil {
		return nil, err
	}
	return &Revocations{file, log}, nil
}

// CheckRevocations returns the error of OpenRevocations for these contents.
func CheckRevocations(lists, authorities []byte) error {
	_, err := parseRevoked(lists, authorities)
	return err
}

// NextUpdate returns when the first of the lists is due, or zero if none says. It is
// safe for concurrent use.
func (r *Revocations) NextUpdate() time.Time { return r.get().nextUpdate }

func (r *Revocations) get() *revoked {
	lists := r.file.Get()
	if next := lists.nextUpdate; !next.IsZero() && time.Now().After(next) && lists.late.CompareAndSwap(false, true) {
		r.log.Warn("a revocation list of client certificates is out of date and stays in force", "next_update", next)
	}
	return lists
}

// check returns ErrRevoked if each chain has a revoked certificate. Certificates with
// several issuers have several chains.
func (r *Revocations) check(chains [][]*x509.Certificate) error {
	lists := r.get()
	for _, chain := range chains {
		if !lists.has(chain) {
			return nil
		}
	}
	return fmt.Errorf("the client certificate: %w", ErrRevoked)
}

func (l *revoked) has(chain []*x509.Certificate) bool {
	for _, c := range chain {
		if l.certificates[serial{string(c.RawIssuer), string(c.SerialNumber.Bytes())}] {
			return true
		}
	}
	return false
}

func parseRevoked(lists, authorities []byte) (*revoked, error) {
	signers := parseAuthorities(authorities)
	r := &revoked{certificates: make(map[serial]bool)}
	all, err := splitLists(lists)
	if err != nil {
		return nil, err
	}
	for i, raw := range all {
		if err := r.add(raw, signers); err != nil {
			return nil, fmt.Errorf("revocation list %d of %d: %w", i+1, len(all), err)
		}
	}
	return r, nil
}

// parseAuthorities skips what is no certificate, as x509.CertPool does.
func parseAuthorities(raw []byte) (all []*x509.Certificate) {
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			all = append(all, c)
		}
	}
	return all
}

const listBlock = "X509 CRL"

// splitLists returns the lists of a file in DER.
func splitLists(raw []byte) (all [][]byte, err error) {
	if !bytes.Contains(raw, []byte("-----BEGIN")) {
		for len(raw) > 0 {
			var one asn1.RawValue
			if raw, err = asn1.Unmarshal(raw, &one); err != nil {
				return nil, fmt.Errorf("holds no revocation list in PEM or DER: %w", err)
			}
			all = append(all, one.FullBytes)
		}
	} else {
		block, rest := pem.Decode(raw)
		for ; block != nil; block, rest = pem.Decode(rest) {
			if block.Type != listBlock {
				return nil, fmt.Errorf("holds a %q beside revocation lists (%q)", block.Type, listBlock)
			}
			all = append(all, block.Bytes)
		}
		if bytes.Contains(rest, []byte("-----BEGIN")) {
			return nil, errors.New("has an incomplete PEM block")
		}
	}
	if len(all) == 0 {
		return nil, errors.New("holds no revocation list")
	}
	return all, nil
}

// add adds a list that one of the signers signed.
func (l *revoked) add(raw []byte, signers []*x509.Certificate) error {
	list, err := x509.ParseRevocationList(raw)
	if err != nil {
		return err
	}
	if err := checkSigned(list, signers); err != nil {
		return err
	}
	if err := checkCritical(list.Extensions); err != nil {
		return err
	}
	for _, e := range list.RevokedCertificateEntries {
		if err := checkCritical(e.Extensions); err != nil {
			return fmt.Errorf("certificate %x: %w", e.SerialNumber, err)
		}
		l.certificates[serial{string(list.RawIssuer), string(e.SerialNumber.Bytes())}] = true
	}
	if next := list.NextUpdate; !next.IsZero() && (l.nextUpdate.IsZero() || next.Before(l.nextUpdate)) {
		l.nextUpdate = next
	}
	return nil
}

func checkSigned(list *x509.RevocationList, signers []*x509.Certificate) error {
	err := errors.New("no client authority has that name")
	for _, c := range signers {
		if !bytes.Equal(c.RawSubject, list.RawIssuer) {
			continue
		}
		if err = list.CheckSignatureFrom(c); err == nil {
			return nil
		}
	}
	return fmt.Errorf("the list of %q is not signed by a client authority: %w", list.Issuer, err)
}

// issuingDistributionPoint marks a list of a part of the certificates. It revokes
// those that it names, as any other.
var issuingDistributionPoint = asn1.ObjectIdentifier{2, 5, 29, 28}

// checkCritical rejects what would give entries another meaning: lists of changes
// to other lists, and entries of other issuers.
func checkCritical(extensions []pkix.Extension) error {
	for _, e := range extensions {
		if e.Critical && !e.Id.Equal(issuingDistributionPoint) {
			return fmt.Errorf("the critical extension %v is not supported; use complete lists, each of one issuer", e.Id)
		}
	}
	return nil
}
