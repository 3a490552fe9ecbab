package preview

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// tokenParameter is the query parameter of a URL's token.
const tokenParameter = "sandgate_token"

// URLs creates and checks the URLs of one preview domain. It is safe for concurrent
// use.
type URLs struct {
	keys   keys
	scheme string
	domain string // without a port
	port   string // with its colon, or empty
	maxTTL time.Duration
}

// Defaults of a URL's lifetime.
const (
	DefaultTTL    = time.Hour
	DefaultMaxTTL = 24 * time.Hour
)

var domainPattern = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// NewURLs returns the URLs below domain, HOST or HOST:PORT as browsers see it, with
// the scheme "http" or "https". All servers of the domain must have the same secret.
// maxTTL bounds the lifetime of URLs; 0: DefaultMaxTTL.
func NewURLs(secret []byte, scheme, domain string, maxTTL time.Duration) (*URLs, error) {
	k, err := newKeys(secret)
	if err != nil {
		return nil, err
	}
	u := &URLs{keys: k, scheme: scheme, domain: strings.ToLower(strings.TrimSuffix(domain, ".")), maxTTL: maxTTL}
	if host, port, err := net.SplitHostPort(u.domain); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("%q has no valid port", domain)
		}
		u.domain, u.port = host, ":"+port
	}
	const longest = 253 - 63 - 1
	switch {
	case scheme != "http" && scheme != "https":
		return nil, fmt.Errorf("%q is neither http nor https", scheme)
	case !domainPattern.MatchString(u.domain) || len(u.domain) > longest:
		return nil, fmt.Errorf("%q is not a domain name of at most %d characters", domain, longest)
	case net.ParseIP(u.domain) != nil:
		return nil, fmt.Errorf("%q is an address; each URL needs a host name of its own below a domain", domain)
	case maxTTL < 0:
		return nil, errors.New("the longest lifetime of a URL is negative")
	case maxTTL == 0:
		u.maxTTL = DefaultMaxTTL
	}
	if (scheme == "https" && u.port == ":443") || (scheme == "http" && u.port == ":80") {
		u.port = ""
	}
	return u, nil
}

// MaxTTL is the longest lifetime of a URL.
func (u *URLs) MaxTTL() time.Duration { return u.maxTTL }

// Domain returns the domain with its port, if it has one.
func (u *URLs) Domain() string { return u.domain + u.port }

// Secure reports whether browsers reach the domain by TLS.
func (u *URLs) Secure() bool { return u.scheme == "https" }

// Created is a new URL.
type Created struct {
	// URL has the token in its query.
	URL string
	// Base is the same URL without it. Programs send the token as a bearer.
	Base  string
	Token string
}

// MaxLength bounds a URL in characters. Proxies pass on few longer ones.
const MaxLength = 8_000

// ErrTooLong is for claims that a URL has no room for.
var ErrTooLong = errors.New("the URL is too long")

// Create returns the URL of claims. The error wraps ErrTooLong if their path or access
// policy is too long for one.
func (u *URLs) Create(c Claims) (Created, error) {
	token, err := u.keys.token(c)
	if err != nil {
		return Created{}, err
	}
	base, err := u.origin(c)
	if err != nil {
		return Created{}, err
	}
	base += (&url.URL{Path: urlPath(c)}).EscapedPath()
	whole := base + "?" + tokenParameter + "=" + token
	if len(whole) > MaxLength {
		return Created{}, fmt.Errorf("%w: it would have %d characters", ErrTooLong, len(whole))
	}
	return Created{URL: whole, Base: base, Token: token}, nil
}

// urlPath returns the path of a URL as it is created. That of a file ends with the
// file's name, by which programs save it.
func urlPath(c Claims) string {
	if c.Path == "" {
		return "/"
	}
	name := path.Base(c.Path)
	if name == "/" || name == "." || name == ".." {
		name = "file" // a directory, which the agent refuses
	}
	return "/" + name
}

// origin returns scheme, host name and port.
func (u *URLs) origin(c Claims) (string, error) {
	label, err := u.keys.host(c)
	return u.scheme + "://" + label + "." + u.domain + u.port, err
}

// serves reports whether a request's Host is the one of these claims. The port of
// Host does not count: a proxy may listen at another one.
func (u *URLs) serves(host string, c Claims) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	label, err := u.keys.host(c)
	return err == nil && strings.EqualFold(strings.TrimSuffix(host, "."), label+"."+u.domain)
}
