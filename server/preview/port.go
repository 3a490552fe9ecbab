package preview

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Bounds of what a program sends.
const (
	maxResponseHeader = 256 << 10
	bufferBytes       = 32_000
)

// port serves a request for a port of a sandbox: one connection for each request, so
// none is ever used for another sandbox, and each has its own audit records.
func (h *Handler) port(w http.ResponseWriter, r *http.Request, p permit) {
	c, err := connect(r.Context(), h.cfg.Sandboxes(p.principal()), &sandboxv1.ForwardStart{
		SandboxId: p.claims.SandboxID, ExpectedIncarnation: p.claims.Incarnation, Port: p.claims.Port,
	})
	if err != nil {
		if !h.resumed(w, r, p, err) {
			fail(w, r, failed(err))
		}
		return
	}
	defer func() { _ = c.Close() }()
	origin, err := h.cfg.URLs.origin(p.claims)
	if err != nil {
		fail(w, r, failed(err))
		return
	}
	local := fmt.Sprintf("localhost:%d", p.claims.Port)
	proxy := httputil.ReverseProxy{
		Rewrite:        func(pr *httputil.ProxyRequest) { h.rewrite(pr, p, local, origin) },
		ModifyResponse: func(resp *http.Response) error { modify(resp, local, origin); return nil },
		Transport:      transport(c),
		FlushInterval:  -1, // server-sent events
		ErrorLog:       slog.NewLogLogger(h.cfg.Log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			fail(w, r, broken(r.Context(), err))
		},
	}
	proxy.ServeHTTP(w, r)
}

// rewrite makes the request that the program gets. Host is the same on plain and
// upgraded requests: development servers refuse hosts that they do not know.
func (h *Handler) rewrite(pr *httputil.ProxyRequest, p permit, local, origin string) {
	pr.Out.URL.Scheme, pr.Out.URL.Host, pr.Out.Host = "http", local, local
	pr.Out.URL.RawQuery = p.query
	header := pr.Out.Header
	pr.SetXForwarded()
	external := strings.TrimPrefix(origin, h.cfg.URLs.scheme+"://")
	header.Set("X-Forwarded-Host", external)
	header.Set("X-Forwarded-Proto", h.cfg.URLs.scheme)
	stripCookie(header)
	if tokens := bearer(header); len(tokens) > 0 {
		// Also one that has expired, or that is for another host.
		if _, err := h.cfg.URLs.keys.open(tokens[0], p.claims.Expires); !errors.Is(err, errToken) {
			header.Del("Authorization")
		}
	}
	// Programs compare Origin and Referer with Host.
	if strings.EqualFold(header.Get("Origin"), origin) {
		header.Set("Origin", "http://"+local)
	}
	if rest, ok := strings.CutPrefix(header.Get("Referer"), origin+"/"); ok {
		if path, query, ok := strings.Cut(rest, "?"); ok {
			_, query = cutToken(query)
			rest = path + "?" + query
		}
		header.Set("Referer", "http://"+local+"/"+rest)
	}
}

// modify makes the response that the caller gets.
func modify(resp *http.Response, local, origin string) {
	resp.Header.Del(errorHeader) // only the server's own errors have it
	stripSetCookie(resp.Header)
	target, err := url.Parse(resp.Header.Get("Location"))
	if err == nil && target.Scheme == "http" && strings.EqualFold(target.Host, local) {
		rest := strings.TrimPrefix(resp.Header.Get("Location"), "http://")
		resp.Header.Set("Location", origin+rest[len(local):])
	}
}

var errUsed = errors.New("the connection of this request was used before")

// transport returns a transport for the only request of a connection.
func transport(c net.Conn) *http.Transport {
	var used atomic.Bool
	return &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errUsed
			}
			return c, nil
		},
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxResponseHeader,
		ReadBufferSize: bufferBytes, WriteBufferSize: bufferBytes,
	}
}
