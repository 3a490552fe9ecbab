//go:build docker

package network

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandgate/sandgate/providers/docker"
	"github.com/sandgate/sandgate/test/upstream"
)

// TestNetworkConformanceOnDocker needs a daemon, which "make test-docker" starts.
func TestNetworkConformanceOnDocker(t *testing.T) {
	for _, c := range []struct {
		name      string
		transport docker.Transport
		options   string
	}{
		{"socket", docker.TransportSocket, `{}`}, {"exec", docker.TransportExec, `{}`}, {"gvisor", docker.TransportExec, `{"runtime": "runsc"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			open := func(ctx context.Context, dir, agent string, logger *slog.Logger) (substrate, error) {
				return docker.New(ctx, docker.Config{
					StateDir: filepath.Join(dir, "state"), Image: os.Getenv("SANDGATE_DOCKER_IMAGE"), Transport: c.transport,
					Agent: func(string) ([]byte, error) { return os.ReadFile(agent) }, Logger: logger,
				})
			}
			port := freePort(t)
			certificate, trust := upstream.Trusted(t, "upstream.example")
			conform(t, startWith(t, json.RawMessage(c.options), trust, open, port), port, certificate)
			if c.name == "gvisor" {
				return // its transport is exec's
			}
			s, ca := site(t)
			port = portOf(s.Listener.Addr().String())
			t.Run("restart", func(t *testing.T) {
				restart(t, startWith(t, json.RawMessage(c.options), nil, open, port), port, ca)
			})
		})
	}
}
