package serve

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"

	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/reload"
)

// tls returns nil if no certificate is configured. The files are reloaded when they
// change: a new certificate and new authorities apply to the next handshake.
func (c config) tls(logger *slog.Logger) (*tls.Config, error) {
	if c.TLS == (tlsConfig{}) {
		return nil, nil
	}
	if err := c.TLS.check(); err != nil {
		return nil, err
	}
	pair, err := reload.Open(logger, keyPair, c.TLS.Cert, c.TLS.Key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Get(), nil }}
	if c.TLS.ClientCA == "" {
		return cfg, nil
	}
	authorities, err := reload.Open(logger, certPool, c.TLS.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("--tls-client-ca: %w", err)
	}
	cfg.ClientCAs = authorities.Get()
	// A caller with a token needs no certificate.
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	if c.Auth.bearer() {
		cfg.ClientAuth = tls.VerifyClientCertIfGiven
	}
	// A resumed session would bypass the check against new authorities.
	cfg.SessionTicketsDisabled = true
	fixed := cfg.Clone()
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := fixed.Clone()
		now.ClientCAs = authorities.Get()
		return now, nil
	}
	return cfg, nil
}

// check returns an error unless files are given that belong together.
func (t tlsConfig) check() error {
	switch {
	case (t.Cert == "") != (t.Key == "") || t.ClientCA != "" && t.Cert == "":
		return errHalfTLS
	case t.ClientCRL != "" && t.ClientCA == "":
		return errCRLAlone
	default:
		return nil
	}
}

var (
	errHalfTLS  = errors.New("TLS needs both --tls-cert and --tls-key")
	errCRLAlone = errors.New("--tls-client-crl needs --tls-client-ca, whose authorities sign the lists")
)

// certificates returns what authenticates callers by their certificates, where
// authorities for these are configured.
func (t tlsConfig) certificates(logger *slog.Logger) (a authn.Certificates, err error) {
	if t.ClientCRL != "" {
		if a.Revoked, err = authn.OpenRevocations(t.ClientCRL, t.ClientCA, logger); err != nil {
			return a, fmt.Errorf("--tls-client-crl: %w", err)
		}
	}
	return a, nil
}

func keyPair(contents [][]byte) (*tls.Certificate, error) {
	cert, err := tls.X509KeyPair(contents[0], contents[1])
	return &cert, err
}

func certPool(contents [][]byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(contents[0]) {
		return nil, errors.New("holds no certificate")
	}
	return pool, nil
}
