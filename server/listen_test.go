package server

import (
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/listen"
)

func TestListeningBeyondLoopbackNeedsTLSAndAuthentication(t *testing.T) {
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
			l, err := listen.Open(t.Context(), c.address)
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
