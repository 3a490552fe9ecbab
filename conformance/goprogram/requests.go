package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// request sends an HTTP request through the proxy: METHOD URL. It trusts the
// authorities that commands of the sandbox trust, and follows no redirect.
func request(rest string) (string, error) { return send(rest, &http.Transport{Proxy: toProxy}, false) }

// bypass sends a request without the proxy.
func bypass(rest string) (string, error) { return send(rest, &http.Transport{}, false) }

// follow sends a request through the proxy, accepts every certificate, and follows
// redirects.
func follow(rest string) (string, error) {
	//nolint:gosec // What the request carries matters, not where it ends.
	return send(rest, &http.Transport{Proxy: toProxy, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, true)
}

func toProxy(*http.Request) (*url.URL, error) {
	return &url.URL{Scheme: "http", Host: proxy}, nil
}

// send returns the status, body and headers of the response.
func send(rest string, transport *http.Transport, redirects bool) (string, error) {
	method, target, _ := strings.Cut(rest, " ")
	ctx, cancel := context.WithTimeout(context.Background(), attemptTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return "", err
	}
	transport.ForceAttemptHTTP2 = true
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	if !redirects {
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	response, err := client.Do(r)
	if err != nil {
		return "", err
	}
	text, err := statusAndBody(response)
	var headers strings.Builder
	if err == nil {
		err = response.Header.Write(&headers)
	}
	return text + " " + headers.String(), err
}

// mostSearched bounds what find reads of one file.
const mostSearched = 16 << 20

// find searches what a command can read for a text: the files of its directories and
// of the system's temporary and configuration directories, and the environments and
// arguments of processes. It returns the paths where the text is, or "nowhere". The
// text is hexadecimal, with all bits inverted, so that the search does not find itself.
func find(inverted string) (string, error) {
	text, err := hex.DecodeString(inverted)
	if err != nil {
		return "", err
	}
	var found []string
	search := func(path string) {
		if has(path, text) {
			found = append(found, path)
		}
	}
	for _, dir := range []string{
		".", os.Getenv("HOME"), os.TempDir(), filepath.Dir(os.Getenv("SSL_CERT_FILE")),
		"/etc", "/home", "/run", "/tmp", "/var/tmp", "/dev/shm",
	} {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				search(path)
			}
			return nil
		})
	}
	for _, pattern := range []string{"/proc/[0-9]*/environ", "/proc/[0-9]*/cmdline"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		for _, path := range paths {
			search(path)
		}
	}
	if len(found) == 0 {
		return "nowhere", nil
	}
	return strings.Join(found, " "), nil
}

// has reports whether a file can be read and contains the inverted text.
func has(path string, inverted []byte) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	content, _ := io.ReadAll(io.LimitReader(file, mostSearched)) // What was read counts.
	for i := range content {
		content[i] ^= 0xff
	}
	return bytes.Contains(content, inverted)
}
