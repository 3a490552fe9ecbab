package main

import (
	"crypto/x509"
	"os"
	"os/exec"
	"testing"
)

// An image from scratch has no certificate authorities, and the server calls issuers,
// registries and hosts of egress rules over TLS.
func TestAuthoritiesWithoutThoseOfTheSystem(t *testing.T) {
	if os.Getenv("SANDGATE_TEST_AUTHORITIES") != "" {
		pool, err := x509.SystemCertPool()
		if err != nil || pool.Equal(x509.NewCertPool()) {
			t.Fatalf("no authorities, %v", err)
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	again := exec.CommandContext(t.Context(), self, "-test.run", "^"+t.Name()+"$")
	again.Env = append(os.Environ(), "SANDGATE_TEST_AUTHORITIES=1", "SSL_CERT_FILE=/nonexistent", "SSL_CERT_DIR=/nonexistent")
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
