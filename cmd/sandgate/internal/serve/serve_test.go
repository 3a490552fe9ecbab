package serve

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/sandgate/sandgate/cmd/sandgate/internal/settings"
	"github.com/sandgate/sandgate/providers"

	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/quota"
)

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// configOf returns the configuration that a file and flags give.
func configOf(t *testing.T, file string, args ...string) config {
	t.Helper()
	given := defaults()
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	settings.AddFlags(flags, &given)
	if err := flags.Parse(append(args, "--config", writeFile(t, "c.yaml", file))); err != nil {
		t.Fatal(err)
	}
	c, err := load(given, flags.Changed)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const fullConfig = `
listen: unix:///run/x.sock
insecure: true
auth: {tokens_file: /etc/tokens}
log: {level: debug}
audit: {max_size_mib: 7, max_files: 0, required: true, command_text: true}
admin: {listen: ":9", pprof: true}
shutdown: {lame_duck: 5s, drain: 2s, timeout: 30s}
max_connection_age: 10m
limits: {max_timeout: 90s, default_idle_ttl: 2h, max_sandboxes: 200, max_creations: 16, max_connections: 400, max_uploads: 300, max_forwards: 500, max_egress_connections: 600, max_egress_bytes_per_second: 1000000}
quotas:
  tenant: {max_sandboxes: 20, max_memory_bytes: 4096, commands_per_minute: 60}
  principal: {max_streams: 8}
  overrides:
  - {tenant: build, quota: {max_sandboxes: 100, commands_per_minute: -1}}
  - {tenant: build, principal: ci, quota: {max_sandboxes: 50}}
reaper: {interval: 5s}
access: {write_deny_prefixes: [/etc]}
templates:
  - name: py
    image: python:3
    resources: {memory_bytes: 1024}
    network: full
    networks: [none, full]
    allow: [env]
    pool: 3
    provider_options: {a: {b: 1}}
`

func TestConfigFile(t *testing.T) {
	c := configOf(t, fullConfig, "--log-level=warn")
	if c.Listen != "unix:///run/x.sock" || c.Log.Level != "warn" || !c.Insecure || c.Auth.TokensFile != "/etc/tokens" {
		t.Errorf("%+v", c)
	}
	if want := (auditConfig{MaxSize: 7, Required: true, CommandText: true}); c.Audit != want {
		t.Errorf("audit %+v", c.Audit)
	}
	if want := (shutdownConfig{LameDuck: 5 * time.Second, Drain: 2 * time.Second, Timeout: 30 * time.Second}); c.Shutdown != want || c.MaxConnectionAge != 10*time.Minute {
		t.Errorf("shutdown %+v, connection age %v", c.Shutdown, c.MaxConnectionAge)
	}
	if want := (adminConfig{Listen: ":9", Profiles: true}); c.Admin != want {
		t.Errorf("admin %+v", c.Admin)
	}
	cfg, err := c.server()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Limits.MaxTimeout != 90*time.Second || cfg.Limits.DefaultIdleTTL != 2*time.Hour || cfg.Timing.ReapInterval != 5*time.Second ||
		cfg.Access.GetWriteDenyPrefixes()[0] != "/etc" {
		t.Errorf("config %+v", cfg)
	}
	if l := cfg.Limits; l.MaxCreations != 16 || l.MaxConnections != 400 || l.MaxUploads != 300 || l.MaxForwards != 500 || l.MaxEgressConnections != 600 || l.MaxEgressBytesPerSecond != 1_000_000 {
		t.Errorf("limits %+v", l)
	}
	if diff := cmp.Diff(quota.Config{
		MaxSandboxes: 200, Tenant: quota.Limits{MaxSandboxes: 20, MaxMemoryBytes: 4096, CommandsPerMinute: 60}, Principal: quota.Limits{MaxStreams: 8},
		Overrides: map[quota.Owner]quota.Limits{
			{Tenant: "build"}:                  {MaxSandboxes: 100, MaxMemoryBytes: 4096},
			{Tenant: "build", Principal: "ci"}: {MaxSandboxes: 50, MaxStreams: 8},
		},
	}, cfg.Quotas); diff != "" {
		t.Error(diff)
	}
	p := cfg.Templates[0]
	if p.Name != "py" || p.Network != providers.NetworkFull || len(p.Networks) != 2 || p.Resources.MemoryBytes != 1024 ||
		string(p.ProviderOptions) != `{"a":{"b":1}}` || len(p.Allow) != 1 || p.Pool != 3 {
		t.Errorf("template %+v", p)
	}
}

// What looks like a date stays the text of the file, at any depth.
func TestOptionsThatLookLikeDatesStayText(t *testing.T) {
	cfg, err := configOf(t, "templates: [{name: a, provider_options: {since: 2026-01-02, annotations: {released: 2026-01-02, on: [2026-01-02T03:04:05Z]}}}]").server()
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"annotations":{"on":["2026-01-02T03:04:05Z"],"released":"2026-01-02"},"since":"2026-01-02"}`
	if got := string(cfg.Templates[0].ProviderOptions); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestConfigFileErrors(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown field":  {"listen: x\nlisten_at: y\n", "line 2: listen_at: unknown key"},
		"nested unknown": {"templates:\n  - name: a\n    memory: 3\n", "line 3: templates[0].memory: unknown key"},
		"bad duration":   {"limits: {max_timeout: fast}\n", "line 1: limits.max_timeout: \"fast\" must be a duration"},
		"bad network":    {"templates: [{name: a, network: some}]\n", "templates[0].network: \"some\" is none of none, proxy, full"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(config{File: writeFile(t, "c.yaml", c.text)}, func(string) bool { return false })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestServeRefusals(t *testing.T) {
	for name, c := range map[string]struct{ flag, want string }{
		"no such provider": {"--provider=vm", "none of local"},
		"half of TLS":      {"--tls-cert=x", "--tls-key"},
		"no tokens file":   {"--tokens-file=/nonexistent", "tokens file"},
		"no config":        {"--config=/nonexistent", "--config"},
		"negative drain":   {"--drain=-1s", "--drain"},
		"log level":        {"--log-level=loud", "--log-level"},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), io.Discard, "--listen", "127.0.0.1:0", "--state-dir", t.TempDir(), c.flag)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestTokenCommand(t *testing.T) {
	cmd := NewTokenCommand()
	var out, entry bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&entry)
	cmd.SetArgs([]string{"new", "--name", "ci"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(out.String())
	if !strings.HasPrefix(token, "sgt_") || strings.Contains(entry.String(), token) || !strings.Contains(entry.String(), `"tenant":"ci"`) {
		t.Fatalf("%q %q", out.String(), entry.String())
	}
}

// What the command prints is an entry that the server reads.
func TestTokenCommandWithScope(t *testing.T) {
	cmd := NewTokenCommand()
	var out, printed bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&printed)
	cmd.SetArgs([]string{"new", "--name", "ci: 'x'", "--tenant", "blue", "--role", "reader", "--template", "small", "--template", "gpu",
		"--prefix", "ci-", "--expires", "1h"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	_, entry, _ := strings.Cut(printed.String(), "\n")
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte("tokens:\n"+entry), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := authn.OpenTokens(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p, err := tokens.AuthenticateToken(strings.TrimSpace(out.String()))
	want := authn.Principal{Name: "ci: 'x'", Tenant: "blue", Role: authn.RoleReader, Issuer: "tokens",
		Scope: authn.Scope{Templates: []string{"small", "gpu"}, IDPrefix: "ci-"}}
	if err != nil || !p.Equal(want) {
		t.Fatalf("got %+v %v", p, err)
	}
	for _, args := range [][]string{{"--role", "admin"}, {"--prefix", "a/b"}, {"--expires", "-1h"}} {
		cmd := NewTokenCommand()
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(append([]string{"new", "--name", "ci"}, args...))
		if err := cmd.Execute(); err == nil {
			t.Errorf("accepted %v", args)
		}
	}
}

// A flag of three values, and texts and switches of a file that are empty or off.
func TestConfigFileAndFlagsThatAreNotGiven(t *testing.T) {
	c := configOf(t, "")
	if c.RequireLimits != nil || c.Listen != "127.0.0.1:7777" || c.Shutdown.Drain != time.Second {
		t.Errorf("%+v", c)
	}
	c = configOf(t, "require_limits: false\nlisten: ''\nprovider:\nshutdown: {drain: 0s}\ninsecure: true\n", "--insecure=false")
	if c.RequireLimits == nil || *c.RequireLimits || c.Listen != "127.0.0.1:7777" || c.Provider != "local" || c.Shutdown.Drain != 0 || c.Insecure {
		t.Errorf("%+v", c)
	}
	if c = configOf(t, "require_limits: false\n", "--require-limits"); !*c.RequireLimits {
		t.Error("the file wins over the flag")
	}
}
