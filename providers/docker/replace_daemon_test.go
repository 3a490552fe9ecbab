//go:build docker

package docker

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/providers/providertest"
)

// TestKilledServersLoseNoSuspendedSandboxOnADaemon: see testKills. Its files are kept,
// too.
func TestKilledServersLoseNoSuspendedSandboxOnADaemon(t *testing.T) {
	t.Parallel()
	socket, ok := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://")
	if !ok {
		t.Fatal("DOCKER_HOST must be the address of a socket")
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "docker"})
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	proxy.Transport = transport
	config := testConfig(t)
	config.Transport = TransportExec
	testKills(t, config, proxy, func(t *testing.T, p *Provider) {
		if got := providertest.Shell(t, p, killsName, `echo $GREETING; echo more >>/workspace/file; sort -u /workspace/file`); got != "hello\nmore\n" {
			t.Errorf("it has %q", got)
		}
	})
}
