package server

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandgate/sandgate/server/authn"
)

func TestExposure(t *testing.T) {
	any := authn.Certificates{}
	for name, c := range map[string]struct {
		address string
		change  func(*Config)
		refused bool
	}{
		"loopback":     {"127.0.0.1:0", func(*Config) {}, false},
		"everywhere":   {"0.0.0.0:0", func(*Config) {}, true},
		"insecure":     {"0.0.0.0:0", func(c *Config) { c.Insecure = true }, false},
		"auth alone":   {"0.0.0.0:0", func(c *Config) { c.Authenticator = any }, true},
		"TLS alone":    {"0.0.0.0:0", func(c *Config) { c.TLS = &tls.Config{MinVersion: tls.VersionTLS13} }, true},
		"auth and TLS": {"0.0.0.0:0", func(c *Config) { c.TLS, c.Authenticator = &tls.Config{MinVersion: tls.VersionTLS13}, any }, false},
		"unix":         {"unix:" + filepath.Join(t.TempDir(), "s"), func(*Config) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, c.change)
			l, err := Listen(t.Context(), c.address)
			if err != nil {
				t.Skipf("this machine cannot listen there: %v", err)
			}
			done := make(chan error, 1)
			go func() { done <- h.server.Serve(l) }()
			if c.refused {
				if err := <-done; !errors.Is(err, ErrExposed) {
					t.Fatalf("got %v", err)
				}
				return
			}
			conn, err := net.Dial(l.Addr().Network(), l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
			t.Cleanup(func() {
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
			h.server.grpc.Stop()
		})
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	first, err := Listen(t.Context(), "unix://"+path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info, err)
	}
	if _, err := Listen(t.Context(), "unix://"+path); err == nil {
		t.Fatal("a live server's socket was taken")
	}
	// A server that died leaves its socket behind.
	first.(*unixListener).Listener.Close()
	second, err := Listen(t.Context(), "unix://"+path)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("the socket was left behind")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), "unix://"+path); err == nil {
		t.Fatal("a file was taken for a socket")
	}
	if _, err := Listen(t.Context(), "unix:relative"); err == nil {
		t.Fatal("a relative path was taken")
	}
}
