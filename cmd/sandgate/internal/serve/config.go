package serve

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sandgate/sandgate/cmd/sandgate/internal/settings"
	"github.com/sandgate/sandgate/providers/docker"
	"github.com/sandgate/sandgate/providers/kubernetes"
)

// config is the configuration of the server. A field's tags are its one
// description: "yaml" is the key in the configuration file, "flag" the flag, "help"
// the text for both. Durations are written as in "90s", sizes in bytes.
type config struct {
	Listen        string `yaml:"listen" flag:"listen" help:"address to listen on: HOST:PORT or unix:///path"`
	Provider      string `yaml:"provider" flag:"provider" help:"where sandboxes live: local, docker, kubernetes or agentsandbox" enum:"local docker kubernetes agentsandbox"`
	StateDir      string `yaml:"state_dir" flag:"state-dir" help:"directory for everything that must survive the server"`
	File          string `yaml:"-" flag:"config" help:"configuration file (YAML)"`
	Insecure      bool   `yaml:"insecure" flag:"insecure" help:"allow listening on other interfaces than loopback without TLS and authentication"`
	RequireLimits *bool  `yaml:"require_limits" flag:"require-limits" help:"refuse to start where memory, CPU, processes, disk or network are not enforced (default true for the local provider on other interfaces than loopback)"`

	TLS  tlsConfig  `yaml:"tls"`
	Auth authConfig `yaml:"auth"`

	Audit          auditConfig `yaml:"audit"`
	SpecSecretFile string      `yaml:"spec_secret_file" flag:"spec-secret-file" help:"secret that salts stored hashes of environment values, and from which the certificate authorities of sandboxes and the keys of URLs are derived, the same for all replicas (default with the providers local and docker: STATE-DIR/spec-secret, created if missing)"`
	Admin          adminConfig `yaml:"admin"`

	Preview previewConfig `yaml:"preview"`

	Shutdown         shutdownConfig `yaml:"shutdown"`
	MaxConnectionAge time.Duration  `yaml:"max_connection_age" flag:"max-connection-age" help:"age at which clients are asked to reconnect, perhaps to another replica; running calls continue; 0: never" min:"0s"`

	Log   logConfig `yaml:"log"`
	Agent string    `yaml:"-" flag:"agent" help:"executable of the agent, instead of the embedded one"`

	Local        localConfig        `yaml:"local"`
	Docker       dockerConfig       `yaml:"docker"`
	Kubernetes   kubernetesConfig   `yaml:"kubernetes"`
	AgentSandbox agentSandboxConfig `yaml:"agentsandbox"`

	Reaper       reaperConfig              `yaml:"reaper"`
	Limits       limitsConfig              `yaml:"limits"`
	Quotas       quotasConfig              `yaml:"quotas"`
	Access       *accessConfig             `yaml:"access" help:"access policy of every file call and command, in every sandbox"`
	EgressGroups map[string][]egressConfig `yaml:"egress_groups" help:"named lists of rules for the network mode proxy, with the keys of a template's egress; a template and a request can name them"`
	Secrets      []secretConfig            `yaml:"secrets" help:"secrets that the server puts into requests of sandboxes, by rules of the network mode proxy"`
	Webhooks     []webhookConfig           `yaml:"webhooks" help:"receivers of the events of sandboxes (default none)"`
	Templates    []templateConfig          `yaml:"templates" help:"templates that a request can name (default one, named default, without network)"`
}

type tlsConfig struct {
	Cert      string `yaml:"cert" flag:"tls-cert" help:"PEM file of the server's certificate; reloaded when it changes"`
	Key       string `yaml:"key" flag:"tls-key" help:"PEM file of the certificate's key"`
	ClientCA  string `yaml:"client_ca" flag:"tls-client-ca" help:"PEM file of the authorities for client certificates, which then authenticate callers"`
	ClientCRL string `yaml:"client_crl" flag:"tls-client-crl" help:"PEM or DER file of revocation lists (CRL) of these authorities; reloaded when it changes (default none)"`
}

// Without settings the audit log takes 1.1 GiB at most.
const (
	defaultAuditSize  = 100
	defaultAuditFiles = 10
)

type auditConfig struct {
	File        string `yaml:"file" flag:"audit-file" help:"file for audit records, reopened on SIGHUP; \"-\" for standard error (default STATE-DIR/audit.log)"`
	MaxSize     int    `yaml:"max_size_mib" flag:"audit-max-size" help:"size in MiB at which the audit file is rotated" min:"0"`
	MaxFiles    int    `yaml:"max_files" flag:"audit-max-files" help:"rotated audit files to keep; 0: all" min:"0"`
	Required    bool   `yaml:"required" flag:"audit-required" help:"refuse calls while the audit log cannot be written"`
	CommandText bool   `yaml:"command_text" flag:"audit-command-text" help:"record the text of commands, not only a hash"`
}

type adminConfig struct {
	Listen   string `yaml:"listen" flag:"admin-listen" help:"address for /metrics, /healthz and /readyz: HOST:PORT, :PORT on loopback, or unix:///path (default none)"`
	Profiles bool   `yaml:"pprof" flag:"pprof" help:"serve /debug/pprof at --admin-listen"`
}

type shutdownConfig struct {
	LameDuck time.Duration `yaml:"lame_duck" flag:"lame-duck" help:"how long the server keeps serving after SIGTERM, not ready, so that load balancers notice" min:"0s"`
	Drain    time.Duration `yaml:"drain" flag:"drain" help:"how long running calls may continue after that" min:"0s"`
	Timeout  time.Duration `yaml:"timeout" flag:"shutdown-timeout" help:"when a shutdown that hangs is cut off, after --lame-duck" min:"0s"`
}

type logConfig struct {
	Level  string `yaml:"level" flag:"log-level" help:"debug, info, warn or error" enum:"debug info warn error"`
	Format string `yaml:"format" flag:"log-format" help:"text or json" enum:"text json"`
}

type localConfig struct {
	Runtime   string `yaml:"runtime" flag:"local-runtime" help:"OCI runtime of the local provider: runc, crun or runsc"`
	Profile   string `yaml:"profile" flag:"local-profile" help:"profile of the local provider: default or restricted" enum:"default restricted"`
	Transport string `yaml:"transport" flag:"local-transport" help:"transport of the local provider to the agent: socket or exec (default socket, with runsc exec)" enum:"socket exec"`
	UIDBase   uint32 `yaml:"uid_base" flag:"local-uid-base" help:"first of the 65536 user ids for the local provider's sandboxes, one for each (default 2031616)"`
	Cgroup    string `yaml:"cgroup" flag:"local-cgroup" help:"cgroup of the local provider, the parent of each sandbox's"`

	MaxMemory      int64   `yaml:"max_memory" flag:"local-max-memory" help:"memory of all sandboxes of the local provider together, in bytes (default nine tenths of the machine's; negative: no limit)"`
	MaxProcesses   int64   `yaml:"max_processes" flag:"local-max-processes" help:"processes of all sandboxes of the local provider together (default half of what the kernel allows; negative: no limit)"`
	MinFree        int64   `yaml:"min_free" flag:"local-min-free" help:"free bytes of the state directory's file system below which the local provider creates no sandbox (default a twentieth of its size, at most 2 GiB; negative: none)"`
	DiskOvercommit float64 `yaml:"disk_overcommit" flag:"local-disk-overcommit" help:"how many times the disks of all sandboxes of the local provider may exceed the space for them (default 10, on other interfaces than loopback 1, which guarantees each its space; negative: no limit)"`

	RegistryAuth string           `yaml:"registry_auth" flag:"local-registry-auth" help:"file of credentials for registries, as docker login writes it, for the local provider; read for each pull (default the files of Docker and Podman in the account of the server, with their credential helpers)"`
	Registries   []registryConfig `yaml:"registries" help:"registries of the local provider that need more than their name"`
}

// registryConfig is one registry of images.
type registryConfig struct {
	Name      string   `yaml:"name" help:"HOST or HOST:PORT, as references name it"`
	Mirrors   []string `yaml:"mirrors" help:"hosts to try before it, in this order"`
	PlainHTTP bool     `yaml:"plain_http" help:"allow HTTP without TLS; loopback addresses may always use it"`
}

type reaperConfig struct {
	Interval time.Duration `yaml:"interval" help:"how often the server looks for expired sandboxes, at most 30s (default 15s)" min:"0s" max:"30s"`
}

// defaults returns the configuration without a file and flags.
func defaults() config {
	return config{
		Listen: "127.0.0.1:7777", Provider: "local", StateDir: DefaultStateDir(),
		Audit:        auditConfig{MaxSize: defaultAuditSize, MaxFiles: defaultAuditFiles},
		Shutdown:     shutdownConfig{Drain: time.Second, Timeout: 15 * time.Second},
		Log:          logConfig{Level: "warn", Format: "text"},
		Local:        localConfig{Runtime: "runc", Profile: "default", Cgroup: "/sandgate"},
		Docker:       dockerConfig{Image: docker.DefaultImage, Transport: string(docker.TransportAuto)},
		Kubernetes:   kubernetesConfig{Image: kubernetes.DefaultImage, Transport: string(kubernetes.TransportAuto), AgentPort: 7778, VerifyNetwork: 6 * time.Hour},
		AgentSandbox: agentSandboxConfig{IdleGrace: time.Hour},
	}
}

// DefaultStateDir returns where the server keeps its state without --state-dir, "" if there
// is no such place.
func DefaultStateDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/sandgate"
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sandgate")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".local", "state", "sandgate")
}

// load returns the configuration: the defaults, overridden by the file, overridden
// by the flags that were given.
func load(flags config, given func(flag string) bool) (config, error) {
	c := defaults()
	if flags.File != "" {
		raw, err := os.ReadFile(flags.File)
		if err != nil {
			return c, fmt.Errorf("--config: %w", err)
		}
		if err := c.parse(raw); err != nil {
			return c, fmt.Errorf("--config %s: %w", flags.File, err)
		}
	}
	to := settings.Options(&c)
	for i, o := range settings.Options(&flags) {
		if o.Flag != "" && given(o.Flag) {
			to[i].Value.Set(o.Value)
		}
	}
	return c, settings.CheckBounds(&c)
}

// parse decodes a configuration file into c. An empty string stands for the default.
func (c *config) parse(raw []byte) error {
	standard := *c
	if err := settings.Decode(bytes.NewReader(raw), c); err != nil {
		return err
	}
	from := settings.Options(&standard)
	for i, o := range settings.Options(c) {
		if text, ok := o.Value.Interface().(string); ok && text == "" {
			o.Value.Set(from[i].Value)
		}
	}
	return nil
}
