package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// httpGate passes the requests of one connection on to the upstream that was
// asked for.
type httpGate struct {
	conn     *Conn
	scheme   string
	denied   atomic.Pointer[Denied] // the first
	handlers sync.WaitGroup

	mu        sync.Mutex
	transport *http.Transport // nil before the first request
	opened    net.Conn        // the connection of Open, until it is used
	closing   bool
}

func (c *Conn) newGate(scheme string, back io.Reader) *httpGate {
	return &httpGate{conn: c, scheme: scheme, opened: newUpstreamConn(c, c.upstream, back)}
}

// ServeHTTP passes a request on if it is for the asked name.
func (g *httpGate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !g.begin() {
		panic(http.ErrAbortHandler)
	}
	defer g.handlers.Done()
	if problem := g.differs(r); problem != "" {
		g.refuse(w, r, http.StatusMisdirectedRequest, g.conn.target.denied(ReasonHost, "%s", problem))
		return
	}
	policy, end := g.conn.requests.begin(&g.conn.policy, r)
	defer end()
	if denied := policy.checkRequest(g.conn.target, r); denied != nil {
		g.refuse(w, r, http.StatusForbidden, denied)
		return
	}
	keepUpgrade(r.Header)
	redact, err := g.put(policy, r)
	if err != nil {
		g.refuse(w, r, http.StatusForbidden, g.conn.target.denied(ReasonRequest, "%s", err))
		return
	}
	proxy := httputil.ReverseProxy{
		Rewrite:       g.rewrite,
		Transport:     g.transportFor(r),
		FlushInterval: -1,
		BufferPool:    chunkPool{},
		ErrorLog:      quiet,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			var denied *Denied
			if errors.As(err, &denied) {
				g.refuse(w, r, http.StatusForbidden, denied)
				return
			}
			text := fmt.Sprintf("request to %s failed", g.conn.target)
			var certificate *tls.CertificateVerificationError
			if errors.As(err, &certificate) { // others may name the server's network
				text += ": " + shown(err.Error())
			}
			http.Error(w, text, http.StatusBadGateway)
		},
	}
	if redact != nil {
		w = &redacting{ResponseWriter: w, redact: redact}
		proxy.ModifyResponse = func(response *http.Response) error {
			redact(response.Header)
			if response.StatusCode == http.StatusSwitchingProtocols {
				return nil // the body is the connection
			}
			response.Body = &trailingBody{ReadCloser: response.Body, atEnd: func() { redact(response.Trailer) }}
			return nil
		}
	}
	proxy.ServeHTTP(w, r)
}

// put puts the policy's secrets into the request.
func (g *httpGate) put(policy *Policy, r *http.Request) (redact func(http.Header), err error) {
	given, all := policy.secrets(g.conn.target, r), policy.allSecrets(g.conn.target)
	switch {
	case len(all) == 0, len(given) == 0 && g.conn.secrets == nil:
		return nil, nil
	case g.conn.secrets == nil:
		return nil, errors.New("the server has no secrets")
	case len(given) > 0 && r.Method == http.MethodTrace:
		return nil, errors.New("the answer to a TRACE request would have the secret")
	}
	return g.conn.secrets.Put(r, g.conn.target.host, g.scheme == "https", given, all)
}

// redacting redacts the headers of informational responses, which ReverseProxy
// passes on without ModifyResponse.
type redacting struct {
	http.ResponseWriter
	redact func(http.Header)
}

func (w *redacting) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *redacting) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		w.redact(w.Header())
	}
	w.ResponseWriter.WriteHeader(status)
}

// refuse answers a request that is not allowed. HTTP/2 gets the status and goes
// on: with 421, the client repeats the request on a connection of its own. The
// connection of HTTP/1 ends.
func (g *httpGate) refuse(w http.ResponseWriter, r *http.Request, status int, denied *Denied) {
	g.denied.CompareAndSwap(nil, denied)
	if r.ProtoMajor != 2 {
		status = http.StatusForbidden
		w.Header().Set("Connection", "close")
	}
	http.Error(w, denied.Error(), status)
}

func (g *httpGate) transportFor(r *http.Request) *http.Transport {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.transport == nil {
		g.transport = g.newTransport(r.ProtoMajor == 2)
	}
	return g.transport
}

// newTransport speaks the program's protocol to the upstream: requests of HTTP/1
// may ask for an upgrade, which HTTP/2 does not have.
func (g *httpGate) newTransport(http2 bool) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(!http2 || g.scheme == "https")
	protocols.SetHTTP2(http2 && g.scheme == "https")
	protocols.SetUnencryptedHTTP2(http2 && g.scheme == "http")
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return g.dial(ctx) },
		Protocols:   &protocols,
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests: true, MaxReceiveBufferPerConnection: upstreamWindow, MaxReceiveBufferPerStream: upstreamStreamWindow,
		},
		TLSClientConfig:    &tls.Config{ServerName: g.conn.target.host, RootCAs: g.conn.dialer.Roots, MinVersion: tls.VersionTLS12},
		DisableCompression: true, MaxConnsPerHost: maxUpstreams, IdleConnTimeout: g.conn.Idle(),
		TLSHandshakeTimeout: g.conn.firstBytes(), ExpectContinueTimeout: g.conn.firstBytes(), MaxResponseHeaderBytes: maxHead,
	}
}

// trailingBody calls atEnd when the body has ended and its trailers are there.
type trailingBody struct {
	io.ReadCloser
	atEnd func()
}

func (b *trailingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.atEnd()
	}
	return n, err
}

// begin counts a request, unless the connection is closed.
func (g *httpGate) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closing {
		g.handlers.Add(1)
	}
	return !g.closing
}

// close ends the upstream's connections, and the requests that still run: nothing
// reaches the program any more.
func (g *httpGate) close() {
	g.mu.Lock()
	g.closing = true
	transport := g.transport
	g.mu.Unlock()
	if transport != nil {
		transport.CloseIdleConnections() // These end in order.
	}
	g.conn.further.end()
	_ = g.conn.upstream.Close()
	g.handlers.Wait()
}

// rewrite undoes what ReverseProxy does to a request besides hop-by-hop headers:
// the server is no part of the conversation.
func (g *httpGate) rewrite(r *httputil.ProxyRequest) {
	target := g.conn.target
	r.Out.URL.Scheme = g.scheme
	r.Out.URL.Host = target.String()
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	r.Out.Host = g.authority()
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = values
		}
	}
}

// dial returns the connection of Open once, and then new ones, under the present
// policy.
func (g *httpGate) dial(ctx context.Context) (net.Conn, error) {
	g.mu.Lock()
	conn := g.opened
	g.opened = nil
	g.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	return g.conn.dialFurther(ctx)
}

// differs returns why the request is not for the target, empty if it is.
func (g *httpGate) differs(r *http.Request) string {
	target := g.conn.target
	host, port := r.Host, ""
	if colon := strings.LastIndexByte(host, ':'); colon >= 0 {
		host, port = host[:colon], host[colon+1:]
	}
	name, problem := normalizeName(host)
	switch {
	case r.URL.Opaque != "": // It would replace the whole target, and could name another host.
		return "the request's target is not a path"
	case r.Method == http.MethodConnect:
		return "a CONNECT request cannot go through another proxy"
	case r.Host == "":
		return "the request names no host; it must name " + target.host
	case problem != "" || name != target.host || port != "" && port != strconv.Itoa(int(target.port)):
		return fmt.Sprintf("the request is for %s; it must be for %s", shown(r.Host), g.authority())
	}
	return ""
}

// authority returns the value of the Host header.
func (g *httpGate) authority() string {
	target := g.conn.target
	if g.scheme == "http" && target.port == 80 || g.scheme == "https" && target.port == 443 {
		return target.host
	}
	return target.String()
}

// keepUpgrade removes upgrades after which the connection would carry requests
// that nothing checks.
func keepUpgrade(header http.Header) {
	for _, value := range header.Values("Upgrade") {
		value = strings.ToLower(value)
		if strings.Contains(value, "h2c") || strings.Contains(value, "tls") || strings.Contains(value, "http") {
			header.Del("Upgrade")
			header.Del("Http2-Settings")
			return
		}
	}
}
