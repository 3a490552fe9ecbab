package network

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/test/upstream"
)

// TestInstallers: an ordinary user of a default sandbox installs Python and Node packages
// with pip, uv and npm, whose programs are then on PATH, and clones a repository. The
// indexes are this test's.
func TestInstallers(t *testing.T) {
	index := upstream.Packages(t)
	port := portOf(index.Listener.Addr().String())
	b := startChanged(t, "runc", local.ProfileDefault, func(c *server.Config) {
		c.Templates = append(c.Templates, policy.Template{Name: "full", Network: providers.NetworkFull, ProviderOptions: []byte(`{"host_network": true}`)})
	}, port)
	for _, c := range []struct {
		network, host string
		request       sandgate.CreateRequest
	}{
		{"proxy", "index.example", sandgate.CreateRequest{Spec: &sandgate.Spec{Network: &sandgate.Network{Allow: []*sandboxv1.EgressRule{
			{Hosts: []string{"index.example"}, Ports: []uint32{port}}, {Cidrs: []string{"127.0.0.0/8"}, Ports: []uint32{port}},
		}}}}},
		{"full", "127.0.0.1", sandgate.CreateRequest{Template: "full"}},
	} {
		install(t, b.createFrom(c.request), c.network, fmt.Sprintf("http://%s:%d", c.host, port), globalConfig(t))
	}
}

// install has a sandbox's user install from the indexes at a URL, over a network of this
// name.
func install(t *testing.T, box *sandgate.Sandbox, network, base, globalConfig string) {
	t.Helper()
	host, _, _ := strings.Cut(strings.TrimPrefix(base, "http://"), ":")
	for _, step := range []struct{ name, script, want string }{
		{"user", "test $(id -u) -ne 0 && echo ordinary", "ordinary"},
		{"pip", "pip install -q --disable-pip-version-check --no-cache-dir --retries 0 --trusted-host " + host + " -i " + base + "/simple/ demo && demo-py", "python " + network},
		{"python -m pip", "python3 -m pip list --disable-pip-version-check 2>/dev/null | grep -c ^demo", "1"},
		// A virtual environment works as anywhere, though pip installs for the user by default.
		{"venv", "python3 -m venv --without-pip v && v/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'", "True"},
		{"uv", "pip install -q --disable-pip-version-check --no-cache-dir --retries 0 --trusted-host " + host + " -i " + base + "/simple/ uv && uv --version | cut -d' ' -f1", "uv"},
		{"uv venv, pip", "uv venv -q e && uv pip install -p e/bin/python demo 2>log && e/bin/demo-py && ! grep warning log", "python " + network},
		{"uv run", "uv run -q --no-project --with demo demo-py", "python " + network},
		{"uv project", "uv init -q p && cd p && uv add -q demo && uv run -q demo-py", "python " + network},
		// It replaces what pip has installed.
		{"uv tool", "uv tool install -q --force demo && demo-py", "python " + network},
		{"npm", "npm install -g --silent --no-audit --no-fund --fetch-retries=0 --registry " + base + "/npm/ demo && demo-js", "node " + network},
		{"npm ls", "npm ls -g --depth=0 | grep -c demo@1.0.0", "1"},
		{"npm's global configuration", "npm config get globalconfig", globalConfig},
		{"git", "git clone -q " + base + "/git/repo.git && cat repo/file", "cloned"},
		{"root file system", "touch /usr/x 2>/dev/null || echo read-only", "read-only"},
	} {
		script := "export NETWORK=" + network + " UV_DEFAULT_INDEX=" + base + "/simple/; " + step.script
		if got, code := sh(t, box, script); code != 0 || got != step.want {
			t.Errorf("%s, %s: exit code %d, %q instead of %q", network, step.name, code, got, step.want)
		}
	}
}

// globalConfig is npm's global configuration on this machine.
func globalConfig(t *testing.T) string {
	t.Helper()
	for _, prefix := range []string{"/usr/local", "/usr"} {
		if _, err := exec.LookPath(prefix + "/bin/node"); err == nil {
			return prefix + "/etc/npmrc"
		}
	}
	t.Fatal("this machine has no node below /usr")
	return ""
}
