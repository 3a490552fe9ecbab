package serve

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/local/image"
	"github.com/sandgate/sandgate/server/policy"
)

// kind is a provider that a server can have.
type kind struct {
	name string
	// section is the key of its options.
	section string
	// check returns what checks its templates, and their default resources.
	check func(config) (providers.OptionsChecker, providers.Resources, error)
	open  func(ctx context.Context, c config, logger *slog.Logger) (providers.Provider, error)
	// ownRecords: it keeps its records in the state directory.
	ownRecords bool
	// operatorsImages: the server gets images with rights that callers do not have.
	operatorsImages bool
}

// kinds are all providers. Most is written here only once; the configuration has a
// struct for the options of each.
var kinds = []kind{
	{name: "local", section: "local", check: checkLocal, open: newLocal, ownRecords: true, operatorsImages: true},
	{name: "docker", section: "docker", check: checkDocker, open: newDocker, ownRecords: true, operatorsImages: true},
	{name: "kubernetes", section: "kubernetes", check: checkKubernetes, open: newKubernetes},
	{name: "agentsandbox", section: "kubernetes", check: checkAgentSandbox, open: newAgentSandbox},
}

func kindNames() []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	return names
}

// kind returns the provider that the configuration names.
func (c config) kind() (kind, error) {
	for _, k := range kinds {
		if k.name == c.Provider {
			return k, nil
		}
	}
	return kind{}, fmt.Errorf("--provider: %q is none of %s", c.Provider, strings.Join(kindNames(), ", "))
}

func newLocal(ctx context.Context, c config, logger *slog.Logger) (providers.Provider, error) {
	outliveSandboxes(logger)
	return local.New(ctx, c.local(logger))
}

func checkLocal(c config) (providers.OptionsChecker, providers.Resources, error) {
	c.StateDir = "/" // serve makes it absolute.
	options, err := local.Check(c.local(discard))
	return options, local.DefaultResources(), err
}

func (c config) local(logger *slog.Logger) local.Config {
	cfg := local.Config{
		StateDir: filepath.Join(c.StateDir, "local"), Runtime: c.Local.Runtime,
		Profile: local.Profile(c.Local.Profile), Transport: local.Transport(c.Local.Transport),
		CgroupParent: c.Local.Cgroup, UIDBase: c.Local.UIDBase, Logger: logger, Agent: agentOf(c),
		MaxMemory: c.Local.MaxMemory, MaxProcesses: c.Local.MaxProcesses,
		MinFree: c.Local.MinFree, DiskOvercommit: c.Local.DiskOvercommit,
		Registries: image.Registries{AuthFile: c.Local.RegistryAuth},
	}
	for _, r := range c.Local.Registries {
		cfg.Registries.Known = append(cfg.Registries.Known, image.Registry(r))
	}
	return cfg
}

// outliveSandboxes makes the kernel kill sandboxes before this server if the machine
// runs out of memory. A score that is already set is kept.
func outliveSandboxes(logger *slog.Logger) {
	const file = "/proc/self/oom_score_adj"
	data, err := os.ReadFile(file)
	if err != nil || strings.TrimSpace(string(data)) != "0" {
		return
	}
	if err := os.WriteFile(file, []byte("-500"), 0); err != nil {
		logger.Debug("the server is not protected from the OOM killer", "error", err)
	}
}

// beyondLoopback reports whether other machines can reach an address.
func beyondLoopback(listen string) bool {
	if strings.HasPrefix(listen, "unix:") {
		return false
	}
	host, _, err := net.SplitHostPort(listen)
	if err != nil || host == "localhost" {
		return false // listen.Open rejects an address without a port
	}
	ip := net.ParseIP(host)
	return ip == nil || !ip.IsLoopback()
}

// builtinTemplate returns the template of a server that is configured with none. A
// personal server is one whose caller and operator are the same person, so a request
// can allow connections to public addresses. On a unix socket it can also ask for
// the machine's network. Not so on a loopback port: a sandbox with that network
// could call this very server.
func builtinTemplate(personal, socket bool) policy.Template {
	t := policy.DefaultTemplate()
	if personal {
		t.AllowOptions = []string{"root"} // all providers know it; not all can do it
		t.Networks = append(t.Networks, providers.NetworkProxy)
	}
	if personal && socket {
		t.Networks = append(t.Networks, providers.NetworkFull)
	}
	return t
}

// requireImageLists restricts templates without a list of images to their own. An
// image of the local provider may be a file of this machine, which the server reads as
// root, and one in a registry is pulled with the operator's credentials. So callers
// other than the operator can name only listed ones.
func requireImageLists(templates []policy.Template) {
	for i := range templates {
		if templates[i].Images == nil {
			templates[i].Images = []string{}
		}
	}
}

// address returns the address that clients connect to.
func address(listen string, addr net.Addr) string {
	if strings.HasPrefix(listen, "unix:") {
		return "unix://" + addr.String()
	}
	return addr.String()
}
