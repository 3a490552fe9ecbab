package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sandgate/sandgate/bench/report"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// reverseCommand makes this program the yardstick of the preview rows.
const reverseCommand = "reverse"

// serveWeb answers a request with a few bytes, and one for "/bulk/SIZE" with so many.
func serveWeb(w http.ResponseWriter, r *http.Request) {
	text, bulk := strings.CutPrefix(r.URL.Path, "/bulk/")
	if !bulk {
		_, _ = io.WriteString(w, "hello")
		return
	}
	size, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Length", text)
	for left := size; left > 0; left -= int64(len(block)) {
		if _, err := w.Write(block[:min(left, int64(len(block)))]); err != nil {
			return
		}
	}
}

// reverse prints the port of a reverse proxy with the defaults of net/http/httputil
// before a server's URL, and serves until it is killed.
func reverse(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: reverse URL")
	}
	to, err := url.Parse(args[0])
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(os.Stdout, l.Addr().(*net.TCPAddr).Port); err != nil {
		return err
	}
	return http.Serve(l, &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
}

// site is a web server as a client of the preview rows reaches it.
type site struct {
	client *http.Client
	base   string // URL that ends with a slash
	token  string // empty: none
}

// newSite returns a site with connections of its own, all to one address.
func newSite(address, base, token string) site {
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}}
	return site{client: &http.Client{Transport: transport}, base: base, token: token}
}

// siteHere returns the web server at a port of this machine.
func siteHere(port int32) site {
	address := fmt.Sprintf("127.0.0.1:%d", port)
	return newSite(address, "http://"+address+"/", "")
}

func (s site) close() { s.client.CloseIdleConnections() }

// get reads size bytes from a path.
func (s site) get(ctx context.Context, path string, size int64) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path, nil)
	if err != nil {
		return err
	}
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	response, err := s.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	n, err := io.Copy(io.Discard, response.Body)
	if err == nil && (response.StatusCode != http.StatusOK || n != size) {
		err = fmt.Errorf("GET %s%s: %s, %d bytes, want %d", s.base, path, response.Status, n, size)
	}
	return err
}

// previewed restarts the server with URLs of ports and files, and runs the listener in a
// sandbox. It returns the sandbox's web server by URL. remove deletes the sandbox and
// restarts the server without it.
func (b *bench) previewed(ctx context.Context) (_ site, remove func(), err error) {
	address, err := freeAddress()
	if err != nil {
		return site{}, nil, err
	}
	if err := b.serve(ctx, "--preview-listen", address); err != nil {
		return site{}, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	drop := func() {}
	remove = func() {
		cancel(nil)
		drop()
		if err := b.serve(context.WithoutCancel(ctx)); err != nil {
			slog.Warn("the server does not start again", "error", err)
		}
	}
	defer func() {
		if err != nil {
			remove()
		}
	}()
	const sandbox = "bench-preview"
	if drop, err = b.sandbox(ctx, sandbox); err != nil {
		drop = func() {}
		return site{}, nil, err
	}
	inside, err := b.listenInside(ctx, sandbox)
	if err != nil {
		return site{}, nil, err
	}
	u, err := b.client.CreateSandboxUrl(ctx, &sandboxv1.CreateSandboxUrlRequest{
		SandboxId: sandbox, Target: &sandboxv1.CreateSandboxUrlRequest_Port{Port: inside.web},
	})
	if err != nil {
		return site{}, nil, err
	}
	return newSite(address, u.GetBaseUrl(), u.GetToken()), remove, nil
}

// previewRequests compares requests by URL, one after the other on one connection, with
// the same requests to a listener on this machine.
func previewRequests(ctx context.Context, b *bench) ([]report.Figure, error) {
	near, stop, err := listenHere()
	if err != nil {
		return nil, err
	}
	defer stop()
	ours, remove, err := b.previewed(ctx)
	if err != nil {
		return nil, err
	}
	defer remove()
	theirs := siteHere(near.web)
	defer ours.close()
	defer theirs.close()
	times := make([]report.Samples, 2)
	for round := range rounds + 1 {
		for i, s := range []site{ours, theirs} {
			for range b.count(200) {
				start := time.Now()
				if err := s.get(ctx, "", int64(len("hello"))); err != nil {
					return nil, err
				}
				if round > 0 { // the first is for warming up
					times[i] = append(times[i], time.Since(start))
				}
			}
		}
	}
	return []report.Figure{
		added("preview, GET, p50 | direct", times[0], times[1], 0.5, report.Bound{}, report.Bound{}),
		added("preview, GET, p99 | direct", times[0], times[1], 0.99, report.Bound{}, report.Bound{}),
	}, nil
}

// previewThroughput compares a large response by URL with one through a reverse proxy of
// net/http/httputil.
func previewThroughput(ctx context.Context, b *bench) ([]report.Figure, error) {
	near, stop, err := listenHere()
	if err != nil {
		return nil, err
	}
	defer stop()
	line, end, err := startSelf(reverseCommand, fmt.Sprintf("http://127.0.0.1:%d/", near.web))
	if err != nil {
		return nil, err
	}
	defer end()
	port, err := strconv.ParseInt(strings.TrimSpace(line), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("the reverse proxy wrote %q: %w", line, err)
	}
	ours, remove, err := b.previewed(ctx)
	if err != nil {
		return nil, err
	}
	defer remove()
	theirs := siteHere(int32(port))
	defer ours.close()
	defer theirs.close()
	size := b.size(256 << 20)
	times := make([]report.Samples, 2)
	for range b.count(rounds) {
		for i, s := range []site{ours, theirs} {
			start := time.Now()
			if err := s.get(ctx, fmt.Sprintf("bulk/%d", size), size); err != nil {
				return nil, err
			}
			times[i] = append(times[i], time.Since(start))
		}
	}
	return []report.Figure{
		report.Throughput("preview bulk | one hop of httputil.ReverseProxy", size, times[0], times[1], report.Bound{}, report.Bound{}),
	}, nil
}
