package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// tls returns nil where no certificate is given.
func (f serveFlags) tls(logger *slog.Logger) (*tls.Config, error) {
	if f.tlsCert == "" && f.tlsKey == "" && f.tlsClientCA == "" {
		return nil, nil
	}
	if f.tlsCert == "" || f.tlsKey == "" {
		return nil, errors.New("TLS needs both --tls-cert and --tls-key")
	}
	pair := &keyPair{certFile: f.tlsCert, keyFile: f.tlsKey, log: logger}
	if err := pair.load(); err != nil {
		return nil, err
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, GetCertificate: pair.get}
	if f.tlsClientCA == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(f.tlsClientCA)
	if err != nil {
		return nil, fmt.Errorf("--tls-client-ca: %w", err)
	}
	cfg.ClientCAs = x509.NewCertPool()
	if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--tls-client-ca: %s holds no certificate", f.tlsClientCA)
	}
	// With tokens beside it, a caller may come without a certificate.
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	if f.tokensFile != "" {
		cfg.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return cfg, nil
}

// keyPair is a certificate that is read again when its file changes.
type keyPair struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	checked time.Time
	changed time.Time
	cert    *tls.Certificate
}

func (p *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.checked) >= time.Second {
		if err := p.load(); err != nil {
			p.log.Error("certificate could not be read again; the old one counts", "file", p.certFile, "error", err)
		}
	}
	return p.cert, nil
}

func (p *keyPair) load() error {
	p.checked = time.Now()
	info, err := os.Stat(p.certFile)
	if err != nil {
		return fmt.Errorf("--tls-cert: %w", err)
	}
	if p.cert != nil && info.ModTime().Equal(p.changed) {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(p.certFile, p.keyFile)
	if err != nil {
		return fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	p.cert, p.changed = &cert, info.ModTime()
	return nil
}
