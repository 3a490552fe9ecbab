//go:build linux

package local_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// TestGVisorDefaultsToExec: gVisor takes no socket into a sandbox, and the default is exec.
func TestGVisorDefaultsToExec(t *testing.T) {
	config := local.Config{StateDir: t.TempDir(), Runtime: "/opt/runsc-2026", Agent: agentAt("agent"), Transport: local.TransportSocket, Logger: slog.New(slog.DiscardHandler)}
	_, err := local.New(t.Context(), config)
	if !errors.Is(err, providers.ErrInvalid) || !strings.Contains(err.Error(), `"exec"`) {
		t.Errorf("the way socket: %v", err)
	}
	p := open(t, testConfigOf(t, "runsc"))
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	described, err := p.Describe(t.Context())
	if err != nil || !strings.HasPrefix(described.Runtime, "runsc") {
		t.Errorf("it describes itself as %+v, %v", described, err)
	}
}

// TestSandboxesKeepTheirRuntime: sandboxes keep the runtime that they were made with.
func TestSandboxesKeepTheirRuntime(t *testing.T) {
	for _, order := range [][]string{{"runc", "runsc"}, {"runsc", "runc"}} {
		t.Run(order[0]+" then "+order[1], func(t *testing.T) {
			first := testConfigOf(t, order[0])
			first.Transport = local.TransportExec
			second := first
			second.Runtime = order[1]
			spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
			kernels := map[string]string{}
			make := func(p *local.Provider, name string) {
				t.Helper()
				if _, err := providertest.Create(t.Context(), p, name, spec); err != nil {
					t.Fatal(err)
				}
				kernels[name] = providertest.Shell(t, p, name, "uname -r")
			}
			p := open(t, first)
			make(p, "old")
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			p = open(t, second)
			make(p, "new")
			if got := providertest.Shell(t, p, "old", "uname -r"); got != kernels["old"] || got == kernels["new"] {
				t.Errorf("the old sandbox has kernel %q; it had %q, and a new one has %q", got, kernels["old"], kernels["new"])
			}
			for name := range kernels {
				if err := p.Delete(t.Context(), name, providers.Condition{}); err != nil {
					t.Error(err)
				}
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestGVisorFullNetworkReachesTheHost: the sandbox can connect to listeners of the host.
func TestGVisorFullNetworkReachesTheHost(t *testing.T) {
	for _, profile := range []local.Profile{local.ProfileDefault, local.ProfileRestricted} {
		t.Run(string(profile), func(t *testing.T) { testGVisorNetworkFull(t, profile) })
	}
}

func testGVisorNetworkFull(t *testing.T, profile local.Profile) {
	config := testConfigOf(t, "runsc")
	config.Profile = profile
	p := open(t, config)
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	spec := providers.Spec{
		Hash: "h", Network: providers.NetworkFull, Resources: local.DefaultResources(), TemplateOptions: []byte(`{"host_network": true}`),
	}
	if _, err := providertest.Create(t.Context(), p, "full", spec); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Delete(context.WithoutCancel(t.Context()), "full", providers.Condition{}); err != nil {
			t.Error(err)
		}
	}()
	port := answerOnce(t, "from the host")
	if got := providertest.Shell(t, p, "full", "bash -c 'cat </dev/tcp/127.0.0.1/"+port+"'"); got != "from the host" {
		t.Errorf("it got %q", got)
	}
}

// answerOnce listens on the host's loopback, sends a text to the first client, and
// returns the port.
func answerOnce(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = conn.Write([]byte(text))
			err = errors.Join(err, conn.Close())
		}
		done <- err
	}()
	t.Cleanup(func() {
		_ = l.Close()
		if err := <-done; err != nil {
			t.Errorf("no connection: %v", err)
		}
	})
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// TestGVisorHalfWrittenStateIsRemoved: a runsc that was killed may leave half written state, which
// runsc cannot delete.
func TestGVisorHalfWrittenStateIsRemoved(t *testing.T) {
	config := testConfigOf(t, "runsc")
	root := filepath.Join(config.StateDir, "runtime", "runsc")
	if err := os.MkdirAll(root, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"half_sandbox:half.lock", "half_sandbox:half.state", "lock_sandbox:lock.lock", "runsc-half.sock"} {
		if err := os.WriteFile(filepath.Join(root, file), []byte(`{"id":"ha`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// testConfigOf checks that nothing is left.
	if err := open(t, config).Close(); err != nil {
		t.Error(err)
	}
}
