package kubernetes

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sandgate/sandgate/providers"
	raw "github.com/sandgate/sandgate/providers/kubernetes"
	"github.com/sandgate/sandgate/providers/providertest"
)

var agentBinary = sync.OnceValues(func() ([]byte, error) {
	if path := os.Getenv("SANDGATE_AGENT_BIN"); path != "" {
		return os.ReadFile(path)
	}
	dir, err := os.MkdirTemp("", "sandgate-agent-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "sandgate-agent")
	cmd := exec.Command("go", "build", "-o", path, "github.com/sandgate/sandgate/cmd/sandgate-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the agent: %w: %s", err, out)
	}
	return os.ReadFile(path)
})

// pythonImage has python and a Debian userland.
func pythonImage() string {
	if image := os.Getenv("SANDGATE_TEST_PYTHON_IMAGE"); image != "" {
		return image
	}
	return "docker.io/sandgate/python:test"
}

// noPrograms are the cases of programs that the python image has not.
var noPrograms = map[string]string{
	"C24_program_node_workers": "the image has no node",
	"C24_program_git":          "the image has no git",
	"C24_program_compiler":     "the image has no cc",
	"C24_program_sqlite":       "the image has no sqlite3",
}

// rawConfig is the raw provider's, in a namespace of the test's own.
func rawConfig(t *testing.T) raw.Config {
	t.Helper()
	client, _ := clientset(t)
	return raw.Config{
		Kubeconfig: os.Getenv("KUBECONFIG"), Namespace: namespace(t, client), Image: image(),
		Agent:  func(string) ([]byte, error) { return agentBinary() },
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

func openRaw(t *testing.T, config raw.Config) *raw.Provider {
	t.Helper()
	p, err := raw.New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// agentImage holds the agent: SANDGATE_TEST_AGENT_IMAGE, else the one that "make
// test-kubernetes" brings in.
func agentImage() string {
	if image := os.Getenv("SANDGATE_TEST_AGENT_IMAGE"); image != "" {
		return image
	}
	return "docker.io/sandgate/agent:test"
}

// TestRawConformance holds raw pods to the whole suite: with the agent from an
// image and the disk that a node has, and with the agent that the provider
// writes and a disk in memory.
func TestRawConformance(t *testing.T) {
	t.Parallel()
	t.Run("agent image", func(t *testing.T) {
		t.Parallel()
		config := rawConfig(t)
		config.Image, config.AgentImage = pythonImage(), agentImage()
		conformance(t, config, "", nil, map[string]string{
			"C24_disk_hog": "the kubelet evicts a pod whose disk is full, some time after; see the other run for a disk in memory",
		})
	})
	t.Run("written agent", func(t *testing.T) {
		t.Parallel()
		config := rawConfig(t)
		config.Image = pythonImage()
		conformance(t, config, `{"disk_medium": "Memory"}`, part(t, 4, "written"), nil)
	})
}

func conformance(t *testing.T, config raw.Config, options string, pick func(string) bool, except map[string]string) {
	all := map[string]string{
		"C24_no_network":      "a pod always has an interface; a NetworkPolicy closes it, where the cluster's network enforces that",
		"C24_fork_bomb":       "Kubernetes limits processes by the kubelets' podPidsLimit only, and this cluster has none",
		"C24_no_process_left": "Kubernetes limits processes by the kubelets' podPidsLimit only, and this cluster has none",
	}
	maps.Copy(all, noPrograms)
	maps.Copy(all, except)
	providertest.Run(t, providertest.Harness{
		Open: func(t *testing.T) providers.Provider { return openRaw(t, config) },
		Spec: func() providers.Spec {
			spec := providers.Spec{Network: providers.NetworkNone, Resources: raw.DefaultResources()}
			if options != "" {
				spec.TemplateOptions = json.RawMessage(options)
			}
			return spec
		},
		Except: all,
		Pick:   pick,
	})
}
