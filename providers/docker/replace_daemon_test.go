//go:build docker

package docker

import (
	"context"
	"log/slog"
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
	proxy.Transport, proxy.ErrorLog = transport, slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	config := testConfig(t)
	config.Transport = TransportExec
	next := []string{"restart"}
	if os.Getenv("SANDGATE_DOCKER") == "full" {
		next = append(next, "resume", "delete")
	}
	testKills(t, config, proxy, next, func(t *testing.T, p *Provider) {
		if got := providertest.Shell(t, p, killsName, `echo $GREETING; echo more >>/workspace/file; sort -u /workspace/file`); got != "hello\nmore\n" {
			t.Errorf("it has %q", got)
		}
	})
}
