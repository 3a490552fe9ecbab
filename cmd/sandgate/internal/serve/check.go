package serve

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandgate/sandgate/cmd/sandgate/internal/settings"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/preview"
	"github.com/sandgate/sandgate/server/webhook"
)

// checker collects what serve would refuse on every machine with these files.
type checker struct {
	config
	skipFiles bool
	wrong     []error
	// unread are files that this user may not read, with their keys.
	unread []string
}

// check returns the problems of c, each with its key. It needs neither root nor the
// network. unread are files that this user cannot check.
func (c config) check(skipFiles bool) (unread []string, err error) {
	k := &checker{config: c, skipFiles: skipFiles}
	k.checkListeners()
	k.checkTLS()
	k.checkAuth()
	k.checkFiles()
	k.checkServer()
	return k.unread, errors.Join(k.wrong...)
}

// fail reports a problem of the option with a key.
func (k *checker) fail(key string, err error) {
	if err == nil {
		return
	}
	for _, o := range settings.Options(&k.config) {
		if o.Key == key || o.Key == "" && o.Flag == key {
			k.wrong = append(k.wrong, o.Fail(o.Key, err.Error()))
			return
		}
	}
	k.wrong = append(k.wrong, fmt.Errorf("%s: %w", key, err))
}

// read returns the content of a file, and false if it was not read.
func (k *checker) read(key, path string) ([]byte, bool) {
	if path == "" || k.skipFiles {
		return nil, false
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrPermission) {
		k.unread = append(k.unread, key+": "+path)
		return nil, false
	}
	k.fail(key, err)
	return data, err == nil
}

// authenticates reports whether callers are authenticated.
func (c config) authenticates() bool { return c.Auth.bearer() || c.TLS.ClientCA != "" }

func (k *checker) checkListeners() {
	k.fail("listen", checkAddress(k.Listen))
	if !k.Insecure && beyondLoopback(k.Listen) && (k.TLS.Cert == "" || !k.authenticates()) {
		k.fail("listen", fmt.Errorf("%s: %w", k.Listen, server.ErrExposed))
	}
	at := k.Admin.address()
	switch {
	case at == "" && k.Admin.Profiles:
		k.fail("admin.pprof", errPprofAlone)
	case at != "":
		k.fail("admin.listen", checkAddress(at))
		if k.Admin.Profiles && !k.Insecure && beyondLoopback(at) {
			k.fail("admin.pprof", errPprofExposed(at))
		}
	}
}

// checkAddress checks an address without opening it.
func checkAddress(address string) error {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		if path = strings.TrimPrefix(path, "//"); !filepath.IsAbs(path) {
			return fmt.Errorf("%q: the socket's path must be absolute, as in unix:///run/sandgate.sock", address)
		}
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q must be HOST:PORT or unix:///path", address)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("%q: the port must be a number from 0 to 65535", address)
	}
	return nil
}

func (k *checker) checkTLS() {
	t := k.TLS
	if err := t.check(); err != nil {
		k.fail("tls", err)
		return
	}
	cert, certOK := k.read("tls.cert", t.Cert)
	key, keyOK := k.read("tls.key", t.Key)
	if certOK && keyOK {
		_, err := keyPair([][]byte{cert, key})
		k.fail("tls.cert", err)
	}
	authorities, authoritiesOK := k.read("tls.client_ca", t.ClientCA)
	if authoritiesOK {
		_, err := certPool([][]byte{authorities})
		k.fail("tls.client_ca", err)
	}
	if lists, ok := k.read("tls.client_crl", t.ClientCRL); ok && authoritiesOK {
		k.fail("tls.client_crl", authn.CheckRevocations(lists, authorities))
	}
}

func (k *checker) checkAuth() {
	if _, ok := k.read("auth.tokens_file", k.Auth.TokensFile); ok {
		_, err := authn.OpenTokens(k.Auth.TokensFile, discard)
		k.fail("auth.tokens_file", err)
	}
	var issuers []authn.IssuerConfig
	for i, c := range k.Auth.OIDC {
		key := fmt.Sprintf("auth.oidc[%d]", i)
		if ca, ok := k.read(key+".ca_file", c.CAFile); ok && !x509.NewCertPool().AppendCertsFromPEM(ca) {
			k.fail(key+".ca_file", errors.New("holds no certificate"))
		}
		c.CAFile = ""
		issuer, err := c.issuer()
		k.fail(key, err)
		issuers = append(issuers, issuer)
	}
	k.fail("auth.oidc", authn.CheckIssuers(issuers))
	a := k.Auth.Kubernetes
	switch {
	case a.Audience == "" && len(a.Accounts) > 0:
		k.fail("auth.kubernetes", errNoAudience)
	case a.Audience != "":
		// In a cluster there may be no kubeconfig, and this machine need not be in it.
		k.checkKubeconfig("auth.kubernetes.kubeconfig", cmp.Or(a.Kubeconfig, k.Kubernetes.Kubeconfig), cmp.Or(a.Context, k.Kubernetes.Context))
		rules, err := a.rules()
		if err == nil {
			err = authn.AccountsConfig{Audience: a.Audience, Rules: rules}.Check()
		}
		k.fail("auth.kubernetes", err)
	}
}

func (k *checker) checkKubeconfig(key, path, context string) {
	data, ok := k.read(key, path)
	if !ok {
		return
	}
	file, err := clientcmd.Load(data)
	if err != nil {
		k.fail(key, err)
		return
	}
	if context = cmp.Or(context, file.CurrentContext); file.Contexts[context] == nil {
		k.fail(key, fmt.Errorf("%s has no context %q", path, context))
	}
}

// checkFiles checks the other files that the configuration names.
func (k *checker) checkFiles() {
	if secret, ok := k.read("spec_secret_file", k.SpecSecretFile); ok {
		k.fail("spec_secret_file", checkSecret(k.SpecSecretFile, secret))
	}
	k.read("agent", k.Agent)
	for i, w := range k.Webhooks {
		key := fmt.Sprintf("webhooks[%d].secret_file", i)
		if secrets, ok := k.read(key, w.SecretFile); ok {
			k.fail(key, webhook.CheckSecretFile(secrets))
		}
	}
	if path := k.Audit.File; path != "" && path != "-" && !k.skipFiles {
		info, err := os.Stat(filepath.Dir(path))
		switch {
		case errors.Is(err, fs.ErrPermission):
			k.unread = append(k.unread, "audit.file: "+path)
		case err != nil:
			k.fail("audit.file", err)
		case !info.IsDir():
			k.fail("audit.file", fmt.Errorf("%s is no directory", filepath.Dir(path)))
		}
	}
	if k.Provider == "kubernetes" || k.Provider == "agentsandbox" {
		k.checkKubeconfig("kubernetes.kubeconfig", k.Kubernetes.Kubeconfig, k.Kubernetes.Context)
	}
}

// checkServer checks the provider's options, templates, limits, quotas, access
// policies, rules and secrets.
func (k *checker) checkServer() {
	kind, err := k.kind()
	if err != nil {
		k.fail("provider", err)
		return
	}
	options, byDefault, err := kind.check(k.config)
	if err != nil {
		k.fail(kind.section, err)
	}
	cfg, err := k.server()
	if err != nil {
		k.wrong = append(k.wrong, err)
		return
	}
	cfg.RequireLimits = *k.RequireLimits
	k.forCallers(&cfg, kind, k.authenticates())
	if k.SpecSecretFile != "" || kind.ownRecords {
		cfg.SpecSecret = make([]byte, minSpecSecret) // The server reads or makes one.
	}
	if err := cfg.Check(options, byDefault); err != nil {
		k.wrong = append(k.wrong, err)
	}
	k.checkPreview(len(cfg.SpecSecret) > 0)
}

// checkPreview checks the listener for URLs without opening it.
func (k *checker) checkPreview(secret bool) {
	p := k.Preview
	if err := p.check(k.Insecure, secret); err != nil || p.Listen == "" {
		k.fail("preview.listen", err)
		return
	}
	host, _, err := net.SplitHostPort(p.address())
	if err = cmp.Or(checkAddress(p.address()), err); err != nil {
		k.fail("preview.listen", err)
		return
	}
	ip := net.ParseIP(host)
	if host == "localhost" {
		ip = net.IPv6loopback
	}
	domain, scheme, err := p.public(&net.TCPAddr{IP: ip, Port: 1})
	if err == nil {
		_, err = preview.NewURLs(make([]byte, minSpecSecret), scheme, domain, p.MaxTTL)
	}
	k.fail("preview.domain", err)
	cert, certOK := k.read("preview.cert", p.Cert)
	key, keyOK := k.read("preview.key", p.Key)
	if certOK && keyOK {
		_, err := keyPair([][]byte{cert, key})
		k.fail("preview.cert", err)
	}
}
