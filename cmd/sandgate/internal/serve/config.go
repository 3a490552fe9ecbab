package serve

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/goccy/go-yaml"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/policy"
)

// configFile is the file of --config. Durations are written as in "90s", sizes
// in bytes.
type configFile struct {
	Listen        string `yaml:"listen"`
	Provider      string `yaml:"provider"`
	StateDir      string `yaml:"state_dir"`
	Insecure      *bool  `yaml:"insecure"`
	RequireLimits *bool  `yaml:"require_limits"`
	TLS           struct {
		Cert     string `yaml:"cert"`
		Key      string `yaml:"key"`
		ClientCA string `yaml:"client_ca"`
	} `yaml:"tls"`
	Auth struct {
		TokensFile string `yaml:"tokens_file"`
	} `yaml:"auth"`
	Log struct {
		Level  string `yaml:"level"`
		Format string `yaml:"format"`
	} `yaml:"log"`
	Audit struct {
		File        string `yaml:"file"`
		MaxSize     *int   `yaml:"max_size_mib"`
		MaxFiles    *int   `yaml:"max_files"`
		Required    *bool  `yaml:"required"`
		CommandText *bool  `yaml:"command_text"`
	} `yaml:"audit"`
	Admin struct {
		Listen string `yaml:"listen"`
		Pprof  *bool  `yaml:"pprof"`
	} `yaml:"admin"`
	Shutdown struct {
		LameDuck *time.Duration `yaml:"lame_duck"`
		Drain    *time.Duration `yaml:"drain"`
		Timeout  *time.Duration `yaml:"timeout"`
	} `yaml:"shutdown"`
	MaxConnectionAge *time.Duration `yaml:"max_connection_age"`
	SpecSecretFile   string         `yaml:"spec_secret_file"`
	Local            struct {
		Runtime string `yaml:"runtime"`
		Profile string `yaml:"profile"`
		Way     string `yaml:"way"`
		Cgroup  string `yaml:"cgroup"`

		MaxMemory      int64   `yaml:"max_memory"`
		MaxProcesses   int64   `yaml:"max_processes"`
		MinFree        int64   `yaml:"min_free"`
		DiskOvercommit float64 `yaml:"disk_overcommit"`
		UIDBase        uint32  `yaml:"uid_base"`
	} `yaml:"local"`
	Kubernetes struct {
		Kubeconfig      string   `yaml:"kubeconfig"`
		Context         string   `yaml:"context"`
		Namespace       string   `yaml:"namespace"`
		Image           string   `yaml:"image"`
		AgentImage      string   `yaml:"agent_image"`
		NetworkPolicies *bool    `yaml:"network_policies"`
		PodPidsLimit    int64    `yaml:"pod_pids_limit"`
		Transport       string   `yaml:"transport"`
		AgentPort       int32    `yaml:"agent_port"`
		AgentFrom       []string `yaml:"agent_from"`
	} `yaml:"kubernetes"`
	AgentSandbox struct {
		IdleGrace time.Duration `yaml:"idle_grace"`
	} `yaml:"agentsandbox"`
	Reaper struct {
		Interval time.Duration `yaml:"interval"`
	} `yaml:"reaper"`
	Limits    limitsConfig     `yaml:"limits"`
	Access    *accessConfig    `yaml:"access"`
	Templates []templateConfig `yaml:"templates"`
}

type limitsConfig struct {
	MaxMessageBytes       int           `yaml:"max_message_bytes"`
	DefaultTimeout        time.Duration `yaml:"default_timeout"`
	MaxTimeout            time.Duration `yaml:"max_timeout"`
	MaxOutputBytes        int64         `yaml:"max_output_bytes"`
	OutputLogBytes        int64         `yaml:"output_log_bytes"`
	EndRetention          time.Duration `yaml:"end_retention"`
	MaxFileBytes          int64         `yaml:"max_file_bytes"`
	DefaultIdleTTL        time.Duration `yaml:"default_idle_ttl"`
	DefaultTTL            time.Duration `yaml:"default_ttl"`
	MaxIdleTTL            time.Duration `yaml:"max_idle_ttl"`
	MaxTTL                time.Duration `yaml:"max_ttl"`
	CreateTimeout         time.Duration `yaml:"create_timeout"`
	MaxSandboxes          int           `yaml:"max_sandboxes"`
	MaxSandboxesPerTenant int           `yaml:"max_sandboxes_per_tenant"`
	MaxCreations          int           `yaml:"max_creations"`
}

type templateConfig struct {
	Name             string            `yaml:"name"`
	Image            string            `yaml:"image"`
	Resources        resourcesConfig   `yaml:"resources"`
	Env              map[string]string `yaml:"env"`
	WorkingDirectory string            `yaml:"working_directory"`
	Network          networkConfig     `yaml:"network"`
	Command          []string          `yaml:"command"`
	Access           *accessConfig     `yaml:"access"`
	Allow            []string          `yaml:"allow"`
	Images           []string          `yaml:"images"`
	Networks         []networkConfig   `yaml:"networks"`
	MaxResources     resourcesConfig   `yaml:"max_resources"`
	ProviderOptions  map[string]any    `yaml:"provider_options"`
	AllowOptions     []string          `yaml:"allow_options"`
	Pool             int               `yaml:"pool"`
}

type resourcesConfig struct {
	MemoryBytes  int64 `yaml:"memory_bytes"`
	CPUMillis    int32 `yaml:"cpu_millis"`
	MaxProcesses int32 `yaml:"max_processes"`
	DiskBytes    int64 `yaml:"disk_bytes"`
}

type accessConfig struct {
	RootDir            string   `yaml:"root_dir"`
	Virtual            bool     `yaml:"virtual"`
	WriteAllowPrefixes []string `yaml:"write_allow_prefixes"`
	WriteDenyPrefixes  []string `yaml:"write_deny_prefixes"`
	ReadDenyPrefixes   []string `yaml:"read_deny_prefixes"`
	DenyCommands       []string `yaml:"deny_commands"`
}

// networkConfig is a network mode by its name.
type networkConfig providers.NetworkMode

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *networkConfig) UnmarshalText(text []byte) error {
	for _, m := range []providers.NetworkMode{providers.NetworkNone, providers.NetworkProxy, providers.NetworkFull} {
		if string(text) == m.String() {
			*n = networkConfig(m)
			return nil
		}
	}
	return fmt.Errorf("network: %q is none of none, proxy, full", text)
}

// readConfig reads the file strictly: a field that nobody knows is an error
// that names the line.
func readConfig(path string) (configFile, error) {
	var c configFile
	if path == "" {
		return c, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("--config: %w", err)
	}
	if err := yaml.UnmarshalWithOptions(raw, &c, yaml.Strict()); err != nil {
		return c, fmt.Errorf("--config %s: %w", path, err)
	}
	return c, nil
}

// overrule fills in the flags that were not given from the file.
func (c configFile) overrule(f *serveFlags, changed func(flag string) bool) {
	for _, o := range []struct {
		flag  string
		to    *string
		value string
	}{
		{"listen", &f.listen, c.Listen},
		{"provider", &f.provider, c.Provider},
		{"state-dir", &f.stateDir, c.StateDir},
		{"tls-cert", &f.tlsCert, c.TLS.Cert},
		{"tls-key", &f.tlsKey, c.TLS.Key},
		{"tls-client-ca", &f.tlsClientCA, c.TLS.ClientCA},
		{"tokens-file", &f.tokensFile, c.Auth.TokensFile},
		{"audit-file", &f.audit.file, c.Audit.File},
		{"spec-secret-file", &f.specSecretFile, c.SpecSecretFile},
		{"admin-listen", &f.admin.listen, c.Admin.Listen},
		{"log-level", &f.logLevel, c.Log.Level},
		{"log-format", &f.logFormat, c.Log.Format},
		{"local-runtime", &f.localRuntime, c.Local.Runtime},
		{"local-profile", &f.localProfile, c.Local.Profile},
		{"local-way", &f.localWay, c.Local.Way},
		{"local-cgroup", &f.localCgroup, c.Local.Cgroup},
		{"kubernetes-kubeconfig", &f.kubernetes.kubeconfig, c.Kubernetes.Kubeconfig},
		{"kubernetes-context", &f.kubernetes.context, c.Kubernetes.Context},
		{"kubernetes-namespace", &f.kubernetes.namespace, c.Kubernetes.Namespace},
		{"kubernetes-image", &f.kubernetes.image, c.Kubernetes.Image},
		{"kubernetes-agent-image", &f.kubernetes.agentImage, c.Kubernetes.AgentImage},
		{"kubernetes-transport", &f.kubernetes.transport, c.Kubernetes.Transport},
	} {
		if o.value != "" && !changed(o.flag) {
			*o.to = o.value
		}
	}
	for _, o := range []struct {
		flag  string
		to    *int64
		value int64
	}{
		{"local-max-memory", &f.localMaxMemory, c.Local.MaxMemory},
		{"local-max-processes", &f.localMaxProcesses, c.Local.MaxProcesses},
		{"local-min-free", &f.localMinFree, c.Local.MinFree},
	} {
		if o.value != 0 && !changed(o.flag) {
			*o.to = o.value
		}
	}
	if c.Local.DiskOvercommit != 0 && !changed("local-disk-overcommit") {
		f.localDiskOvercommit = c.Local.DiskOvercommit
	}
	overruleOne(changed, "insecure", &f.insecure, c.Insecure)
	overruleOne(changed, "require-limits", &f.requireLimits, c.RequireLimits)
	overruleOne(changed, "audit-max-size", &f.audit.maxSize, c.Audit.MaxSize)
	overruleOne(changed, "audit-max-files", &f.audit.maxFiles, c.Audit.MaxFiles)
	overruleOne(changed, "audit-required", &f.audit.required, c.Audit.Required)
	overruleOne(changed, "audit-command-text", &f.audit.commandText, c.Audit.CommandText)
	if c.AgentSandbox.IdleGrace != 0 && !changed("agentsandbox-idle-grace") {
		f.agentSandbox.idleGrace = c.AgentSandbox.IdleGrace
	}
	overruleOne(changed, "pprof", &f.admin.profiles, c.Admin.Pprof)
	overruleOne(changed, "lame-duck", &f.stop.lameDuck, c.Shutdown.LameDuck)
	overruleOne(changed, "drain", &f.stop.drain, c.Shutdown.Drain)
	overruleOne(changed, "shutdown-timeout", &f.stop.timeout, c.Shutdown.Timeout)
	overruleOne(changed, "max-connection-age", &f.stop.connectionAge, c.MaxConnectionAge)
	overruleOne(changed, "kubernetes-network-policies", &f.kubernetes.networkPolicies, c.Kubernetes.NetworkPolicies)
	if c.Local.UIDBase != 0 && !changed("local-uid-base") {
		f.localUIDBase = c.Local.UIDBase
	}
	if c.Kubernetes.PodPidsLimit != 0 && !changed("kubernetes-pod-pids-limit") {
		f.kubernetes.podPidsLimit = c.Kubernetes.PodPidsLimit
	}
	if c.Kubernetes.AgentPort != 0 && !changed("kubernetes-agent-port") {
		f.kubernetes.agentPort = c.Kubernetes.AgentPort
	}
	if c.Kubernetes.AgentFrom != nil && !changed("kubernetes-agent-from") {
		f.kubernetes.agentFrom = c.Kubernetes.AgentFrom
	}
}

// overruleOne fills in one flag.
func overruleOne[T any](changed func(flag string) bool, flag string, to, value *T) {
	if value != nil && !changed(flag) {
		*to = *value
	}
}

// server is the part of the server's configuration that only the file has.
func (c configFile) server() (server.Config, error) {
	cfg := server.Config{
		Limits: server.Limits(c.Limits), Access: c.Access.policy(),
		Timing: server.Timing{ReapInterval: c.Reaper.Interval},
	}
	for _, t := range c.Templates {
		one := policy.Template{
			Name: t.Name, Image: t.Image, Resources: providers.Resources(t.Resources), Env: t.Env,
			WorkingDirectory: t.WorkingDirectory, Network: providers.NetworkMode(t.Network), Command: t.Command,
			Access: t.Access.policy(), Allow: t.Allow, Images: t.Images,
			MaxResources: providers.Resources(t.MaxResources), AllowOptions: t.AllowOptions, Pool: t.Pool,
		}
		for _, n := range t.Networks {
			one.Networks = append(one.Networks, providers.NetworkMode(n))
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
