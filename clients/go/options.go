package sandgate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// DefaultAddress is the address of the server if neither an option nor the environment
// names one.
const DefaultAddress = "127.0.0.1:7777"

// Option changes how [NewClient] connects. An option wins over the environment.
type Option func(*config)

// WithAddress sets the server's address instead of SANDGATE_ADDRESS:
// "host:port", "https://host:port" (or "tls://…") for TLS with the system's
// certificates, or "unix:///path". Default: [DefaultAddress].
func WithAddress(address string) Option { return func(c *config) { c.address = address } }

// WithToken sets the bearer token instead of SANDGATE_TOKEN and SANDGATE_TOKEN_FILE.
func WithToken(token string) Option {
	return func(c *config) { c.token, c.ownToken = token, true }
}

// WithTokenFile sets a file with the bearer token, instead of SANDGATE_TOKEN_FILE and
// SANDGATE_TOKEN: a regular file of up to 64 KiB, such as a projected service account
// token. The client reads it before every attempt of a call, so a token that is
// replaced before it expires is never used too long. While the file is missing or empty,
// the client sends the last token that it read; if there is none, calls fail with
// [ErrAuthentication].
//
// If the server rejects a token that has been replaced since it was sent, the client
// makes the call once more with the new one. It reattaches to a command in the same way
// after a token has expired.
func WithTokenFile(path string) Option {
	return func(c *config) { c.tokenFile, c.ownToken = path, true }
}

// WithTokenSource sets a function that returns the bearer token, for tokens that
// change; it wins over the other tokens. It is called before every attempt of a call,
// and after a rejected one, from several goroutines, so it should cache the token until
// it is about to expire. An error fails the call with [ErrAuthentication].
func WithTokenSource(source func(context.Context) (string, error)) Option {
	return func(c *config) { c.tokenSource, c.ownToken = source, true }
}

// WithMetadata sets gRPC metadata of every call, such as "x-request-id". Metadata of
// the call's context (metadata.AppendToOutgoingContext) wins.
func WithMetadata(md map[string]string) Option {
	return func(c *config) { c.metadata = maps.Clone(md) }
}

// WithCAFile sets the PEM file of certificate authorities for the server's
// certificate, instead of SANDGATE_CA_FILE. It turns TLS on.
func WithCAFile(path string) Option { return func(c *config) { c.caFile = path } }

// WithCertificate sets the client's certificate and key, PEM files, instead of
// SANDGATE_CERT_FILE and SANDGATE_KEY_FILE. It turns TLS on.
func WithCertificate(certFile, keyFile string) Option {
	return func(c *config) { c.certFile, c.keyFile = certFile, keyFile }
}

// WithServerName sets the name that the server's certificate must have, if not
// the address's.
func WithServerName(name string) Option { return func(c *config) { c.serverName = name } }

// WithTemplate sets the template of sandboxes that are created without one, instead of
// SANDGATE_TEMPLATE. Default: the server's "default".
func WithTemplate(name string) Option { return func(c *config) { c.template = name } }

// WithInsecure allows the client to send a token without TLS to a server that is
// neither on loopback nor on a unix socket. Anyone on the network path can read it.
func WithInsecure() Option { return func(c *config) { c.insecure = true } }

// WithReconnectTimeout sets the retry window: how long the client retries a broken call
// (a unary one at most 30 s) and reattaches to a command. Default: 60 s. 0: it does not
// retry.
func WithReconnectTimeout(d time.Duration) Option { return func(c *config) { c.retryWindow = d } }

// WithDialOptions adds options to the gRPC connection, such as a dialer.
func WithDialOptions(opts ...grpc.DialOption) Option {
	return func(c *config) { c.dial = append(c.dial, opts...) }
}

// config holds the settings of the options and the environment.
type config struct {
	address     string
	token       string
	tokenFile   string
	ownToken    bool // an option decides on the token, not the environment
	tokenSource func(context.Context) (string, error)
	metadata    map[string]string
	caFile      string
	certFile    string
	keyFile     string
	serverName  string
	insecure    bool
	template    string
	retryWindow time.Duration
	dial        []grpc.DialOption
}

// headers returns the metadata of every call.
func (c *config) headers() headers {
	h := headers{metadata: c.metadata}
	switch {
	case c.tokenSource != nil:
		h.token = c.tokenSource
	case c.token != "":
		h.token = func(context.Context) (string, error) { return c.token, nil }
	case c.tokenFile != "":
		h.token = (&tokenFile{path: c.tokenFile}).token
	}
	return h
}

// newConfig reads the environment, then the options.
func newConfig(getenv func(string) string, opts []Option) (*config, error) {
	c := &config{
		address:     getenv("SANDGATE_ADDRESS"),
		caFile:      getenv("SANDGATE_CA_FILE"),
		certFile:    getenv("SANDGATE_CERT_FILE"),
		keyFile:     getenv("SANDGATE_KEY_FILE"),
		template:    getenv("SANDGATE_TEMPLATE"),
		retryWindow: 60 * time.Second,
	}
	for _, opt := range opts {
		opt(c)
	}
	if c.address == "" {
		c.address = DefaultAddress
	}
	if !c.ownToken {
		c.token, c.tokenFile = getenv("SANDGATE_TOKEN"), getenv("SANDGATE_TOKEN_FILE")
	}
	if c.token != "" && c.tokenFile != "" && c.tokenSource == nil {
		return nil, local(ErrInvalidRequest, codes.InvalidArgument, nil,
			"a token and a token file are both set; set one of them (SANDGATE_TOKEN, SANDGATE_TOKEN_FILE)")
	}
	return c, nil
}

// endpoint is a parsed address.
type endpoint struct {
	target string
	tls    bool
	local  bool
}

// parseAddress returns the target for gRPC in an address, and whether it uses TLS and
// is local.
func parseAddress(address string) (endpoint, error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		if !strings.HasPrefix(path, "/") {
			return endpoint{}, invalidAddress(address, "a unix socket is written unix:///path")
		}
		return endpoint{target: "unix://" + path, local: true}, nil
	}
	var e endpoint
	scheme, rest, found := strings.Cut(address, "://")
	switch {
	case !found:
		rest = address
	case scheme == "https" || scheme == "tls":
		e.tls = true
	case scheme != "http":
		return endpoint{}, invalidAddress(address, "its scheme is not unix, https, tls or http")
	}
	host, port, err := net.SplitHostPort(strings.TrimSuffix(rest, "/"))
	if err != nil || port == "" {
		return endpoint{}, invalidAddress(address, "it must be HOST:PORT or unix:///path")
	}
	if host == "" {
		host = "127.0.0.1"
	}
	ip := net.ParseIP(host)
	e.local = host == "localhost" || ip != nil && ip.IsLoopback()
	e.target = "dns:///" + net.JoinHostPort(host, port)
	return e, nil
}

func invalidAddress(address, why string) error {
	return local(ErrInvalidRequest, codes.InvalidArgument, nil, "the address %q cannot be used: %s", address, why)
}

// speaksTLS reports whether the connection uses TLS.
func (c *config) speaksTLS(e endpoint) bool { return e.tls || c.caFile != "" || c.certFile != "" }

// transport returns the credentials of the connection.
func (c *config) transport(e endpoint) (credentials.TransportCredentials, error) {
	if !c.speaksTLS(e) {
		if c.headers().token != nil && !e.local && !c.insecure {
			return nil, local(ErrInvalidRequest, codes.InvalidArgument, nil,
				"a token is not sent to %s without TLS; use https://… or a CA file, or allow it explicitly", c.address)
		}
		return insecure.NewCredentials(), nil
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.serverName}
	if c.caFile != "" {
		pem, err := os.ReadFile(c.caFile)
		if err != nil {
			return nil, local(ErrInvalidRequest, codes.InvalidArgument, err, "the CA file cannot be read: %v", err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(pem) {
			return nil, local(ErrInvalidRequest, codes.InvalidArgument, nil, "the CA file %s holds no PEM certificate", c.caFile)
		}
	}
	if c.certFile != "" || c.keyFile != "" {
		pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
		if err != nil {
			return nil, local(ErrInvalidRequest, codes.InvalidArgument, err, "the client certificate cannot be used: %v", err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(settings), nil
}
