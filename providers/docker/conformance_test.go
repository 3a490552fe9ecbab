//go:build docker

package docker

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"go.uber.org/goleak"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/providertest"
)

// These tests need a daemon, which "make test-docker" starts: DOCKER_HOST names it, and
// SANDGATE_DOCKER_IMAGE an image with a shell that it has.

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance runs the suite by both transports, and with gVisor, whose transport is
// exec. Without SANDGATE_DOCKER=full, all but the first run only the cases that tell them
// from it.
func TestConformance(t *testing.T) {
	for i, c := range []struct {
		name      string
		runtime   string
		transport Transport
		except    map[string]string
	}{
		{"socket", "", TransportSocket, nil},
		{"exec", "", TransportExec, nil},
		{"runsc", "runsc", TransportAuto, map[string]string{
			"C24_not_root":                     "gVisor does not load Docker's seccomp profile, which the sandbox reports; the suite over a server looks at the rest",
			"C24_no_namespaces_of_its_own":     "as C24_not_root",
			"C24_memory_hog":                   "it ends the whole sandbox, which the suite over a server sees",
			"C23_delete_with_open_connections": "on a busy machine, the daemon can keep streams of execs for more than 10 s after it has removed the container; a server closes its own when it deletes the sandbox",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			config := testConfig(t)
			config.Transport = c.transport
			h := harness(config)
			maps.Copy(h.Except, c.except)
			if c.runtime != "" {
				spec := h.Spec
				h.Spec = func() providers.Spec {
					s := spec()
					s.TemplateOptions = fmt.Appendf(nil, `{"runtime": %q}`, c.runtime)
					return s
				}
			}
			if i > 0 && os.Getenv("SANDGATE_DOCKER") != "full" {
				h.Pick = dials
			}
			providertest.Run(t, h)
		})
	}
}

// dials picks the cases that tell one transport from the other.
func dials(name string) bool {
	return strings.HasPrefix(name, "C02_") || strings.HasPrefix(name, "C23_") || slices.Contains([]string{"C20_create_is_ready", "C20_cancelled_create_leaves_nothing", "C24_memory_hog"}, name)
}

func TestPools(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	h := harness(config)
	h.Except = nil
	providertest.RunPool(t, providertest.PoolHarness{
		Harness: h,
		BreakUnclaimed: func(t *testing.T, p providers.Provider, template string) {
			p.(*Provider).killMembers(t, template)
		},
	})
}

func harness(config Config) providertest.Harness {
	return providertest.Harness{
		Open: func(t *testing.T) providers.Provider { return open(t, config) },
		Spec: func() providers.Spec {
			return providers.Spec{Network: providers.NetworkNone, Resources: DefaultResources()}
		},
		Except: map[string]string{
			"C24_disk_hog":             "Docker's volumes have no size limit, which Describe reports",
			"C24_program_compiler":     "the test's image has none",
			"C24_program_node_workers": "the test's image has none",
			"C24_program_sqlite":       "the test's image has none",
		},
	}
}

// testConfig is a configuration with a state directory of its own. When the test ends,
// the daemon may have nothing left of it.
func testConfig(t *testing.T) Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandgate-docker-")
	if err != nil {
		t.Fatal(err)
	}
	config := Config{
		StateDir: dir, Image: os.Getenv("SANDGATE_DOCKER_IMAGE"),
		Agent:  func(string) ([]byte, error) { return os.ReadFile(agentFile(t)) },
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	t.Cleanup(func() { assertNothingLeft(t, config) })
	return config
}

func agentFile(t *testing.T) string {
	t.Helper()
	if file := os.Getenv("SANDGATE_AGENT_BIN"); file != "" {
		return file
	}
	file, err := filepath.Abs("../../bin/sandgate-agent")
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// assertNothingLeft deletes the sandboxes that a failed test has left, and the state
// directory.
func assertNothingLeft(t *testing.T, config Config) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	config.Logger = slog.New(slog.DiscardHandler)
	p, err := New(ctx, config)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(config.StateDir); err != nil {
			t.Error(err)
		}
	}()
	all, err := p.Layout.Names()
	if err != nil {
		t.Error(err)
	}
	for _, name := range all {
		if err := p.Delete(ctx, name, providers.Condition{}); err != nil {
			t.Error(err)
		}
	}
	filters := make(client.Filters).Add("label", serverLabel+"="+p.id)
	containers, err := p.docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil || len(containers.Items) > 0 {
		t.Errorf("containers are left: %+v, %v", containers.Items, err)
	}
	volumes, err := p.docker.VolumeList(ctx, client.VolumeListOptions{Filters: filters})
	if err != nil || len(volumes.Items) > 0 {
		t.Errorf("volumes are left: %+v, %v", volumes.Items, err)
	}
}

// killMembers ends the agents of a pool's unclaimed sandboxes.
func (p *Provider) killMembers(t *testing.T, template string) {
	t.Helper()
	for d, err := range p.Layout.All() {
		if err != nil {
			t.Fatal(err)
		}
		rec, err := readRecord(d)
		if err != nil || rec.Phase != directory.Unclaimed || rec.Spec.Template != template {
			continue
		}
		if _, err := p.docker.ContainerKill(t.Context(), rec.Container, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
			t.Errorf("kill %s: %v", d.Name(), err)
		}
	}
}
