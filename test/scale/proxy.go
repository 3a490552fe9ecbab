//go:build linux

package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// proxy relays between a server and the API server and counts requests.
type proxy struct {
	listener net.Listener
	server   *http.Server

	mu     sync.Mutex
	counts map[string]count
}

type count struct {
	calls int
	bytes int64
}

func newProxy(config *rest.Config) (*proxy, error) {
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	secure, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	p := &proxy{counts: map[string]count{}}
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Accept-Encoding") // sizes are counted as they are
		},
		FlushInterval: -1,
		// Streams to pods need HTTP/1.1.
		Transport: &http.Transport{
			TLSClientConfig: secure, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
			MaxIdleConnsPerHost: 64, DisableCompression: true,
		},
		ErrorLog: log.New(io.Discard, "", 0), // errors of cancelled calls
		ModifyResponse: func(r *http.Response) error {
			name := nameOf(r.Request)
			p.add(name, 1, 0)
			if r.StatusCode != http.StatusSwitchingProtocols {
				r.Body = &counted{ReadCloser: r.Body, add: func(n int) { p.add(name, 0, n) }}
			}
			return nil
		},
	}
	p.server = &http.Server{Handler: forward}
	go func() { _ = p.server.Serve(p.listener) }()
	return p, nil
}

func (p *proxy) close() { _ = p.server.Close() }

// kubeconfig writes a kubeconfig for connections through the proxy.
func (p *proxy) kubeconfig(path string) error {
	return os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://%s"}}]
users: [{name: u}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, p.listener.Addr()), 0o600)
}

func (p *proxy) add(name string, calls, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.counts[name]
	p.counts[name] = count{c.calls + calls, c.bytes + int64(bytes)}
}

// take returns the counts since the last call.
func (p *proxy) take() map[string]count {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.counts
	p.counts = map[string]count{}
	return now
}

// nameOf names a request by verb and resource, and by purpose if the server makes it on
// its own.
func nameOf(r *http.Request) string {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	i := slices.Index(path, "namespaces")
	if i < 0 || len(path) < i+3 {
		return "other"
	}
	rest := path[i+2:]
	resource, query := rest[0], r.URL.Query()
	selector := query.Get("labelSelector")
	verb := map[string]string{"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[r.Method]
	switch {
	case len(rest) > 2:
		return "stream " + resource + "/" + rest[2]
	case query.Get("watch") != "":
		verb = "watch"
	case verb == "get" && len(rest) == 1:
		verb = "list"
	}
	switch {
	case resource == "leases":
		return "lease"
	case strings.Contains(selector, "/phase in"):
		return "sweep"
	case strings.Contains(selector, "/pool"), strings.Contains(selector, "/kind=pool"), len(rest) > 1 && strings.HasPrefix(rest[1], "sgpool-"):
		return "pool"
	}
	return verb + " " + resource
}

type counted struct {
	io.ReadCloser
	add func(int)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.add(n)
	return n, err
}

// without omits the requests that a server makes on its own.
func without(counts map[string]count, errands ...string) map[string]count {
	out := map[string]count{}
	for name, c := range counts {
		if !slices.Contains(errands, name) {
			out[name] = c
		}
	}
	return out
}

func total(counts map[string]count) (calls int, bytes int64) {
	for _, c := range counts {
		calls, bytes = calls+c.calls, bytes+c.bytes
	}
	return calls, bytes
}

// spell formats counts by name.
func spell(counts map[string]count) string {
	var names []string
	for name, c := range counts {
		if c.calls > 0 {
			names = append(names, fmt.Sprintf("%d %s", c.calls, name))
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
