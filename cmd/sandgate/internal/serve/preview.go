package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/listen"
	"github.com/sandgate/sandgate/server/preview"
	"github.com/sandgate/sandgate/server/reload"
)

type previewConfig struct {
	Listen      string        `yaml:"listen" flag:"preview-listen" help:"address for HTTP requests to URLs of ports and files: HOST:PORT, or :PORT on loopback (default none)"`
	Domain      string        `yaml:"domain" flag:"preview-domain" help:"domain of these URLs, HOST or HOST:PORT as browsers see it; each URL has a name of its own below it (default on loopback localhost)"`
	BehindProxy bool          `yaml:"behind_proxy" flag:"preview-behind-proxy" help:"URLs begin with https, and a proxy in front of --preview-listen ends TLS"`
	Cert        string        `yaml:"cert" flag:"preview-cert" help:"PEM file of a certificate for *.DOMAIN; reloaded when it changes"`
	Key         string        `yaml:"key" flag:"preview-key" help:"PEM file of the certificate's key"`
	MaxTTL      time.Duration `yaml:"max_ttl" help:"longest lifetime of a URL (default 24h)"`
}

// errPreviewExposed is the error for a preview listener that other machines could
// reach without TLS.
var errPreviewExposed = errors.New("refusing to serve URLs beyond this machine without TLS: give --preview-cert and --preview-key, " +
	"or --preview-behind-proxy if a proxy ends TLS, or say --insecure")

// check returns what is wrong with the options, as far as they tell.
func (p previewConfig) check(insecure, secret bool) error {
	switch {
	case p == (previewConfig{}):
		return nil
	case p.Listen == "":
		return errors.New("the other options of previews need --preview-listen")
	case (p.Cert == "") != (p.Key == ""):
		return errors.New("TLS of previews needs both --preview-cert and --preview-key")
	case p.Cert != "" && p.BehindProxy:
		return errors.New("--preview-behind-proxy is for a proxy that ends TLS; leave --preview-cert out")
	case !secret:
		return errors.New("--preview-listen needs --spec-secret-file, from which the keys of URLs are derived")
	case beyondLoopback(p.address()) && p.Cert == "" && !p.BehindProxy && !insecure:
		return fmt.Errorf("--preview-listen %s: %w", p.Listen, errPreviewExposed)
	}
	return nil
}

// address is --preview-listen with its default host.
func (p previewConfig) address() string {
	if strings.HasPrefix(p.Listen, ":") {
		return "127.0.0.1" + p.Listen
	}
	return p.Listen
}

// open listens at --preview-listen and adds its URLs to the configuration of the
// server. The listener is nil if there is none.
func (p previewConfig) open(ctx context.Context, cfg *server.Config) (l net.Listener, err error) {
	if err := p.check(cfg.Insecure, len(cfg.SpecSecret) > 0); err != nil || p.Listen == "" {
		return nil, err
	}
	defer func() {
		if err != nil && l != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if l, err = listen.Open(ctx, p.address()); err != nil {
		return nil, fmt.Errorf("--preview-listen: %w", err)
	}
	domain, scheme, err := p.public(l.Addr())
	if err != nil {
		return l, err
	}
	if cfg.PreviewTLS, err = p.tls(cfg.Logger); err != nil {
		return l, err
	}
	if cfg.Preview, err = preview.NewURLs(cfg.SpecSecret, scheme, domain, p.MaxTTL); err != nil {
		return l, fmt.Errorf("--preview-domain: %w", err)
	}
	return l, nil
}

// public returns the domain and the scheme by which browsers reach a listener.
func (p previewConfig) public(at net.Addr) (domain, scheme string, err error) {
	scheme = "https"
	if p.Cert == "" && !p.BehindProxy {
		scheme = "http"
	}
	tcp, ok := at.(*net.TCPAddr)
	if !ok {
		return "", "", errors.New("--preview-listen: must be HOST:PORT")
	}
	if domain = p.Domain; domain == "" {
		if !tcp.IP.IsLoopback() || p.BehindProxy {
			return "", "", errors.New("--preview-listen needs --preview-domain, the domain whose names lead to it")
		}
		// Browsers resolve all names below it to this machine, and trust them as they
		// trust TLS.
		domain = "localhost"
	}
	if _, _, err := net.SplitHostPort(domain); err != nil && !p.BehindProxy {
		domain = fmt.Sprintf("%s:%d", domain, tcp.Port)
	}
	return domain, scheme, nil
}

// announcePreview returns how users see the URLs.
func announcePreview(urls *preview.URLs) string {
	if urls == nil {
		return ""
	}
	scheme := "http"
	if urls.Secure() {
		scheme = "https"
	}
	return scheme + "://*." + urls.Domain()
}

// tls returns nil if a proxy ends TLS, or nothing does.
func (p previewConfig) tls(logger *slog.Logger) (*tls.Config, error) {
	if p.Cert == "" {
		return nil, nil
	}
	pair, err := reload.Open(logger, keyPair, p.Cert, p.Key)
	if err != nil {
		return nil, fmt.Errorf("--preview-cert and --preview-key: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Get(), nil }}, nil
}

// servePreview serves URLs on l, which may be nil, until srv is shut down.
func servePreview(srv *server.Server, l net.Listener) <-chan error {
	served := make(chan error, 1)
	if l == nil {
		served <- nil
		return served
	}
	go func() { served <- srv.ServePreview(l) }()
	return served
}

// closeListener closes l, which may be nil.
func closeListener(l net.Listener) error {
	if l == nil {
		return nil
	}
	return l.Close()
}
