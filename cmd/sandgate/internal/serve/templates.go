package serve

import (
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/server/secret"
)

type templateConfig struct {
	Name             string            `yaml:"name" help:"1 to 63 characters of a-z, 0-9 and \"-\""`
	Image            string            `yaml:"image" help:"image of its sandboxes (default the provider's)"`
	Resources        resourcesConfig   `yaml:"resources" help:"limits (default the provider's)"`
	Env              map[string]string `yaml:"env" help:"environment of every command"`
	WorkingDirectory string            `yaml:"working_directory" help:"directory in which commands start (default /workspace)"`
	Network          string            `yaml:"network" help:"none, proxy or full (default none)" enum:"none proxy full"`
	Command          []string          `yaml:"command" help:"command that runs in each sandbox from its start"`
	Access           *accessConfig     `yaml:"access" help:"access policy of its sandboxes, with the keys of access"`
	Allow            []string          `yaml:"allow" help:"fields that a request can set; an empty list: none (default all)"`
	Images           []string          `yaml:"images" help:"images that a request can name; a trailing \"*\" stands for any rest (default any; with the local provider and authentication, none but the template's)"`
	Networks         []string          `yaml:"networks" help:"network modes that a request can choose besides the template's and none" enum:"none proxy full"`
	Egress           []egressConfig    `yaml:"egress" help:"rules of sandboxes with the network mode proxy, within which the rules of a request must lie (default none; on a loopback address without authentication, a request can allow any public destination)"`
	MaxResources     resourcesConfig   `yaml:"max_resources" help:"the most that a request can ask for (default the template's resources)"`
	ProviderOptions  optionsConfig     `yaml:"provider_options" help:"options of the provider"`
	AllowOptions     []string          `yaml:"allow_options" help:"keys of provider_options that a request can set (default none)"`
	Pool             int               `yaml:"pool" help:"sandboxes to keep started ahead (default 0)" min:"0" max:"1000"`
}

// egressConfig is one rule for the network mode proxy.
type egressConfig struct {
	Hosts []string `yaml:"hosts" help:"host names; \"*.example.com\": every name below it; \"*\": every name"`
	CIDRs []string `yaml:"cidrs" help:"addresses in CIDR notation; only these allow addresses that are not public"`
	Ports []uint32 `yaml:"ports" help:"ports (default 80 and 443)" min:"1" max:"65535"`
	Group string   `yaml:"group" help:"name of a list in egress_groups, instead of the other keys"`

	Methods []string           `yaml:"methods" help:"HTTP methods, such as GET (default all); the server ends TLS to check them"`
	Paths   []string           `yaml:"paths" help:"paths of HTTP requests; \"/a/*\": every path below /a/ (default all); the server ends TLS to check them"`
	Secret  egressSecretConfig `yaml:"secret" help:"secret that the server puts into the requests, in TLS only"`
}

// egressSecretConfig is how a secret gets into requests.
type egressSecretConfig struct {
	Name        string `yaml:"name" help:"name of an entry of secrets"`
	Header      string `yaml:"header" help:"header that is set to prefix and the secret (default Authorization)"`
	Prefix      string `yaml:"prefix" help:"text before the secret (default \"Bearer \" without header)"`
	User        string `yaml:"user" help:"user name, for HTTP Basic credentials with the secret as the password"`
	Placeholder string `yaml:"placeholder" help:"text that is replaced with the secret in the headers that a program sends, instead of header, prefix and user"`
}

// secretConfig is one secret.
type secretConfig struct {
	Name    string   `yaml:"name" help:"1 to 63 letters, digits, \".\", \"_\" and \"-\""`
	Tenants []string `yaml:"tenants" help:"tenants whose sandboxes can use it; \"*\": all; without authentication the tenant is default"`
	Hosts   []string `yaml:"hosts" help:"hosts that can get it, as in a rule; \"*\": every host that a rule names"`
	File    string   `yaml:"file" help:"file of its value, read at each use, without one trailing newline"`
	Env     string   `yaml:"env" help:"variable of the server's environment with its value, instead of file"`
}

func egressRules(list []egressConfig) []*sandboxv1.EgressRule {
	var rules []*sandboxv1.EgressRule
	for _, r := range list {
		rule := &sandboxv1.EgressRule{Hosts: r.Hosts, Cidrs: r.CIDRs, Ports: r.Ports, Group: r.Group, Methods: r.Methods, Paths: r.Paths}
		if s := r.Secret; s != (egressSecretConfig{}) {
			rule.Secret = &sandboxv1.EgressSecret{Name: s.Name, Header: s.Header, Prefix: s.Prefix, User: s.User, Placeholder: s.Placeholder}
		}
		rules = append(rules, rule)
	}
	return rules
}

// secretStore returns the secrets, nil without any.
func secretStore(list []secretConfig) (*secret.Store, error) {
	if len(list) == 0 {
		return nil, nil
	}
	entries := make([]secret.Entry, 0, len(list))
	for _, s := range list {
		entries = append(entries, secret.Entry{Name: s.Name, Tenants: s.Tenants, Hosts: s.Hosts, File: s.File, Env: s.Env})
	}
	return secret.New(entries)
}

// optionsConfig holds options of a provider. A value that looks like a date, such
// as that of an annotation, stays the text that the file has.
type optionsConfig map[string]any

// UnmarshalYAML implements yaml.Unmarshaler.
func (o *optionsConfig) UnmarshalYAML(node *yaml.Node) error {
	keepDates(node)
	return node.Decode((*map[string]any)(o))
}

func keepDates(node *yaml.Node) {
	if node.Kind == yaml.ScalarNode && node.ShortTag() == "!!timestamp" {
		node.Tag = "!!str"
	}
	for _, child := range node.Content {
		keepDates(child)
	}
}

type resourcesConfig struct {
	MemoryBytes  int64 `yaml:"memory_bytes" help:"memory; -1: no limit" min:"-1"`
	CPUMillis    int32 `yaml:"cpu_millis" help:"processor time in thousandths of a core; -1: no limit" min:"-1"`
	MaxProcesses int32 `yaml:"max_processes" help:"processes and threads; -1: no limit" min:"-1"`
	DiskBytes    int64 `yaml:"disk_bytes" help:"writable disk; -1: no limit" min:"-1"`
}

type accessConfig struct {
	RootDir            string   `yaml:"root_dir" help:"directory that file calls cannot leave"`
	Virtual            bool     `yaml:"virtual" help:"paths in file calls are relative to root_dir"`
	WriteAllowPrefixes []string `yaml:"write_allow_prefixes" help:"only paths below these can be written"`
	WriteDenyPrefixes  []string `yaml:"write_deny_prefixes" help:"paths below these cannot be written"`
	ReadDenyPrefixes   []string `yaml:"read_deny_prefixes" help:"paths below these cannot be read"`
	DenyCommands       []string `yaml:"deny_commands" help:"commands to refuse: a guardrail, not a security boundary"`
}

// networkMode returns the mode with a name that is within its bounds, or left out.
func networkMode(name string) providers.NetworkMode {
	for _, m := range []providers.NetworkMode{providers.NetworkProxy, providers.NetworkFull} {
		if name == m.String() {
			return m
		}
	}
	return providers.NetworkNone
}

// server is the part of the server's configuration that only the file has.
func (c config) server() (server.Config, error) {
	cfg := server.Config{
		Limits: c.Limits.server(), Access: c.Access.policy(),
		Timing: server.Timing{ReapInterval: c.Reaper.Interval}, Webhooks: endpoints(c.Webhooks),
	}
	var err error
	if cfg.Secrets, err = secretStore(c.Secrets); err != nil {
		return cfg, err
	}
	if cfg.Quotas, err = c.Quotas.quotas(); err != nil {
		return cfg, fmt.Errorf("quotas: %w", err)
	}
	cfg.Quotas.MaxSandboxes = c.Limits.MaxSandboxes
	if len(c.EgressGroups) > 0 {
		cfg.EgressGroups = make(map[string][]*sandboxv1.EgressRule, len(c.EgressGroups))
		for name, rules := range c.EgressGroups {
			cfg.EgressGroups[name] = egressRules(rules)
		}
	}
	for _, t := range c.Templates {
		one := policy.Template{
			Name: t.Name, Image: t.Image, Resources: providers.Resources(t.Resources), Env: t.Env,
			WorkingDirectory: t.WorkingDirectory, Network: networkMode(t.Network), Command: t.Command,
			Access: t.Access.policy(), Allow: t.Allow, Images: t.Images,
			MaxResources: providers.Resources(t.MaxResources), AllowOptions: t.AllowOptions, Pool: t.Pool,
			Egress: egressRules(t.Egress),
		}
		for _, n := range t.Networks {
			one.Networks = append(one.Networks, networkMode(n))
		}
		if len(t.ProviderOptions) > 0 {
			raw, err := json.Marshal(t.ProviderOptions)
			if err != nil {
				return cfg, fmt.Errorf("template %q: provider_options: %w", t.Name, err)
			}
			one.ProviderOptions = raw
		}
		cfg.Templates = append(cfg.Templates, one)
	}
	return cfg, nil
}

func (a *accessConfig) policy() *sandboxv1.AccessPolicy {
	if a == nil {
		return nil
	}
	return &sandboxv1.AccessPolicy{
		RootDir: a.RootDir, Virtual: a.Virtual, WriteAllowPrefixes: a.WriteAllowPrefixes,
		WriteDenyPrefixes: a.WriteDenyPrefixes, ReadDenyPrefixes: a.ReadDenyPrefixes, DenyCommands: a.DenyCommands,
	}
}
