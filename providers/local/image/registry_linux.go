package image

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"syscall"
	"time"

	named "github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/registryauth"
)

// registries finds the hosts that have an image.
type registries struct {
	config Registries
	base   *http.Transport
	wait   time.Duration // as firstWait
}

const (
	dialTimeout = 10 * time.Second
	// answerTimeout is how long a registry may take to begin an answer.
	answerTimeout = 30 * time.Second
)

func newRegistries(config Registries) *registries {
	base := remote.DefaultTransport.(*http.Transport).Clone()
	base.DialContext = (&net.Dialer{Timeout: dialTimeout}).DialContext
	base.ResponseHeaderTimeout = answerTimeout
	return &registries{config: config, base: base, wait: firstWait}
}

func (r *registries) known(host string) Registry {
	for _, known := range r.config.Known {
		if known.Name == host {
			return known
		}
	}
	return Registry{Name: host}
}

// hosts returns where to look for an image: the mirrors, then its registry.
func (r *registries) hosts(ref Reference) []string {
	host := named.Domain(ref.name)
	return append(append([]string{}, r.known(host).Mirrors...), host)
}

// repository is an image's repository on one host, with credentials.
type repository struct {
	host   string
	name   name.Repository
	client *http.Client
	wait   time.Duration // as firstWait
}

// connect authenticates at a host.
func (r *registries) connect(ctx context.Context, host string, ref Reference) (*repository, error) {
	var options []name.Option
	if r.known(host).PlainHTTP {
		options = append(options, name.Insecure)
	}
	registry, err := name.NewRegistry(host, options...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, providers.ErrInvalid)
	}
	repo := registry.Repo(named.Path(ref.name))
	auth, err := r.credentials(ctx, host, repo)
	if err != nil {
		return nil, fmt.Errorf("credentials for the registry %s: %w: %w", host, err, providers.ErrStartFailed)
	}
	patient := transport.NewRetry(guard{inner: r.base, plain: r.plain}, transport.WithRetryPredicate(isAway),
		transport.WithRetryStatusCodes(http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout))
	rt, err := transport.NewWithContext(ctx, registry, auth, patient, []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, err
	}
	return &repository{host: host, name: repo, client: &http.Client{Transport: rt, CheckRedirect: checkRedirect}, wait: r.wait}, nil
}

func (r *registries) credentials(ctx context.Context, host string, repo name.Repository) (authn.Authenticator, error) {
	if r.config.AuthFile == "" {
		return authn.Resolve(ctx, authn.DefaultKeychain, repo)
	}
	data, err := os.ReadFile(r.config.AuthFile)
	if err != nil {
		return nil, err
	}
	found, err := registryauth.Parse(data, host)
	if err != nil || found == nil {
		return authn.Anonymous, err
	}
	return authn.FromConfig(authn.AuthConfig{Username: found.Username, Password: found.Password, IdentityToken: found.IdentityToken}), nil
}

// plain reports whether a host may be spoken to without TLS.
func (r *registries) plain(u *url.URL) bool {
	addr, err := netip.ParseAddr(u.Hostname())
	return r.known(u.Host).PlainHTTP || u.Hostname() == "localhost" || err == nil && addr.IsLoopback()
}

// guard rejects requests without TLS. The library would send them, with
// credentials, to private addresses.
type guard struct {
	inner http.RoundTripper
	plain func(*url.URL) bool
}

// RoundTrip implements http.RoundTripper.
func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !g.plain(req.URL) {
		return nil, errPlainHTTP
	}
	return g.inner.RoundTrip(req)
}

var errPlainHTTP = errors.New("plain HTTP is not allowed")

var errRedirect = errors.New("the registry redirects to an address of a private network, or too often")

// checkRedirect keeps a registry from reaching the private network by redirects to
// addresses. Names are left to the operator's network.
func checkRedirect(req *http.Request, via []*http.Request) error {
	addr, err := netip.ParseAddr(req.URL.Hostname())
	private := err == nil && (addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsUnspecified())
	if len(via) >= 10 || private && req.URL.Hostname() != via[0].URL.Hostname() {
		return errRedirect
	}
	return nil
}

// get requests a manifest or a blob. The caller closes the body.
func (r *repository) get(ctx context.Context, kind, id string, header http.Header) (*http.Response, error) {
	u := url.URL{Scheme: r.name.Scheme(), Host: r.name.RegistryStr(), Path: "/v2/" + r.name.RepositoryStr() + "/" + kind + "/" + id}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header = header
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	if err := transport.CheckError(resp, http.StatusOK, http.StatusPartialContent); err != nil {
		return nil, errors.Join(err, resp.Body.Close())
	}
	return resp, nil
}

// isAway reports whether a request may succeed later.
func isAway(err error) bool {
	if response := (*transport.Error)(nil); errors.As(err, &response) {
		return response.Temporary() || response.StatusCode == http.StatusTooManyRequests
	}
	var (
		op     *net.OpError
		lookup *net.DNSError
		number syscall.Errno
		slow   interface{ Timeout() bool }
	)
	return errors.As(err, &op) || errors.As(err, &lookup) || errors.As(err, &number) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &slow) && slow.Timeout()
}

// pullError returns an error for the caller, who must not see what a registry
// writes: it could be the answer of another server to which the registry has sent
// this one.
func pullError(ctx context.Context, host string, err error) error {
	var (
		response *transport.Error
		cert     *tls.CertificateVerificationError
		op       *net.OpError
	)
	has := errors.As(err, &response)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case isOurs(err):
		return err
	case errors.Is(err, errPlainHTTP), errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("the registry %s does not use TLS; plain HTTP must be allowed in the server's configuration (local.registries, plain_http): %w", host, providers.ErrStartFailed)
	case errors.As(err, &cert):
		return fmt.Errorf("the certificate of the registry %s is not valid: %w: %w", host, cert.Err, providers.ErrStartFailed)
	case has && response.StatusCode == http.StatusNotFound:
		return fmt.Errorf("the registry %s has no such image: %w", host, providers.ErrStartFailed)
	case has && (response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden):
		return fmt.Errorf("the registry %s denies access: the image does not exist, or the server's credentials do not allow to pull it: %w", host, providers.ErrStartFailed)
	case has && response.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("the registry %s accepts no more requests now: %w", host, providers.ErrUnavailable)
	case has && isAway(err):
		return fmt.Errorf("the registry %s fails with status %d: %w", host, response.StatusCode, providers.ErrUnavailable)
	case has:
		return fmt.Errorf("the registry %s answers with status %d: %w", host, response.StatusCode, providers.ErrStartFailed)
	case errors.As(err, &op):
		return fmt.Errorf("the registry %s cannot be reached: %w: %w", host, op, providers.ErrUnavailable)
	case isAway(err):
		return fmt.Errorf("the registry %s cannot be reached: %w", host, providers.ErrUnavailable)
	case errors.Is(err, errRedirect):
		return fmt.Errorf("%w: %w", errRedirect, providers.ErrStartFailed)
	default:
		return fmt.Errorf("the registry %s sends an answer that cannot be used: %w", host, providers.ErrStartFailed)
	}
}

// isOurs reports whether an error has a text of this package.
func isOurs(err error) bool {
	for _, known := range []error{providers.ErrInvalid, providers.ErrStartFailed, providers.ErrExhausted, providers.ErrUnavailable} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
