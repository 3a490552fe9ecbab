package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sandgate/sandgate/bench/report"
)

const (
	// guardCommand makes this program the upstream of requests with a secret.
	guardCommand = "guard"
	// requestCommand makes this program the one that sends them.
	requestCommand = "request"
	// upstreamName is the upstream's name.
	upstreamName = "upstream.bench.invalid"
	// benchSecret is the secret that the upstream demands.
	benchSecret = "a-secret-of-the-bench"
)

// guard makes a certificate for upstreamName, which it writes to a file, prints the port of a
// server with it, and serves until it is killed. Requests need the secret.
func guard(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: guard FILE")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{upstreamName}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(args[0], pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(os.Stdout, l.Addr().(*net.TCPAddr).Port); err != nil {
		return err
	}
	server := &http.Server{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+benchSecret {
				http.Error(w, "the request has no secret", http.StatusUnauthorized)
				return
			}
			_, _ = io.WriteString(w, "hello")
		}),
	}
	return server.ServeTLS(l, "", "")
}

// request sends COUNT requests, each with a connection of its own, and prints the
// nanoseconds of each. Without a proxy it sends the secret itself.
func request(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: request PROXY|direct URL COUNT")
	}
	return printTimes(args[2], func() error { return requestOnce(args[0], args[1]) })
}

func requestOnce(proxy, target string) error {
	r, err := http.NewRequest(http.MethodGet, target, nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	if proxy == direct {
		r.Header.Set("Authorization", "Bearer "+benchSecret)
		transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, strings.Replace(address, upstreamName, "127.0.0.1", 1))
		}
	} else {
		transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy})
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && string(body) != "hello" {
		err = fmt.Errorf("the upstream answered %s: %s", response.Status, body)
	}
	return err
}

// wrap has the next servers trust a certificate, and resolve upstreamName to this machine,
// by a file of hosts in a mount namespace of their own.
func (b *bench) wrap(trusted string) (restore func(), err error) {
	hosts := filepath.Join(b.dir, "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost "+upstreamName+"\n"), 0o600); err != nil {
		return nil, err
	}
	script := fmt.Sprintf("#!/bin/sh\nexport SSL_CERT_FILE=%s\nexec unshare --mount /bin/sh -c 'mount --bind %s /etc/hosts && exec \"$0\" \"$@\"' %s \"$@\"\n",
		trusted, hosts, b.binary)
	file := filepath.Join(b.dir, "serve.sh")
	if err := os.WriteFile(file, []byte(script), 0o700); err != nil {
		return nil, err
	}
	binary := b.binary
	b.binary = file
	return func() { b.binary = binary }, nil
}

// egressSecret compares requests into which the server puts a secret, each with a
// connection of its own, with the same program's on this machine, which has the secret.
func egressSecret(ctx context.Context, b *bench) ([]report.Figure, error) {
	trusted := filepath.Join(b.dir, "upstream.crt")
	line, stop, err := startSelf(guardCommand, trusted)
	if err != nil {
		return nil, err
	}
	defer stop()
	port := strings.TrimSpace(line)
	key := filepath.Join(b.dir, "spec.secret")
	if err := os.WriteFile(key, []byte(rand.Text()), 0o600); err != nil {
		return nil, err
	}
	value := filepath.Join(b.dir, "secret")
	if err := os.WriteFile(value, []byte(benchSecret), 0o600); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`spec_secret_file: %[1]s
secrets:
- {name: bench, tenants: ["*"], hosts: [%[4]s], file: %[2]s}
templates:
- name: default
  network: proxy
  egress:
  - {hosts: [%[4]s], ports: [%[3]s], secret: {name: bench}}
  - {cidrs: [127.0.0.1/32], ports: [%[3]s]}
`, key, value, port, upstreamName)
	restore, err := b.wrap(trusted)
	if err != nil {
		return nil, err
	}
	const sandbox = "bench-secret"
	remove, err := b.configured(ctx, config, sandbox)
	restore()
	if err != nil {
		return nil, err
	}
	defer remove()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	target, count := "https://"+upstreamName+":"+port+"/", strconv.Itoa(b.count(100))
	var ours, theirs report.Samples
	for round := range rounds + 1 {
		inside, err := b.timesInside(ctx, sandbox, requestCommand, sandboxProxy, target, count)
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, self, requestCommand, direct, target, count)
		cmd.Env, cmd.Stderr = append(os.Environ(), "SSL_CERT_FILE="+trusted), os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, err
		}
		outside, err := scanTimes(string(out))
		if err != nil {
			return nil, err
		}
		if round > 0 { // the first is for warming up
			ours, theirs = append(ours, inside...), append(theirs, outside...)
		}
	}
	return []report.Figure{
		added("egress with a secret, new connection and request, p50 | direct", ours, theirs, 0.5, report.UpTo(3, "ms"), report.UpTo(1, "ms")),
		added("egress with a secret, new connection and request, p99 | direct", ours, theirs, 0.99, report.Bound{}, report.Bound{}),
	}, nil
}
