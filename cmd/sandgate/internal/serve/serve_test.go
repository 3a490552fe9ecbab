package serve

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
)

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
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
limits: {max_timeout: 90s, default_idle_ttl: 2h, max_sandboxes: 200, max_sandboxes_per_tenant: 20, max_creations: 16}
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
	c, err := readConfig(writeFile(t, "c.yaml", fullConfig))
	if err != nil {
		t.Fatal(err)
	}
	f := serveFlags{listen: "127.0.0.1:1", logLevel: "warn", audit: auditFlags{maxFiles: 3}}
	c.overrule(&f, func(flag string) bool { return flag == "log-level" })
	if f.listen != "unix:///run/x.sock" || f.logLevel != "warn" || !f.insecure || f.tokensFile != "/etc/tokens" {
		t.Errorf("flags %+v", f)
	}
	if want := (auditFlags{maxSize: 7, required: true, commandText: true}); f.audit != want {
		t.Errorf("audit %+v", f.audit)
	}
	if want := (stopFlags{lameDuck: 5 * time.Second, drain: 2 * time.Second, timeout: 30 * time.Second, connectionAge: 10 * time.Minute}); f.stop != want {
		t.Errorf("stop %+v", f.stop)
	}
	if want := (adminFlags{listen: ":9", profiles: true}); f.admin != want {
		t.Errorf("admin %+v", f.admin)
	}
	cfg, err := c.server()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Limits.MaxTimeout != 90*time.Second || cfg.Limits.DefaultIdleTTL != 2*time.Hour || cfg.Timing.ReapInterval != 5*time.Second ||
		cfg.Access.GetWriteDenyPrefixes()[0] != "/etc" {
		t.Errorf("config %+v", cfg)
	}
	if l := cfg.Limits; l.MaxSandboxes != 200 || l.MaxSandboxesPerTenant != 20 || l.MaxCreations != 16 {
		t.Errorf("limits %+v", l)
	}
	p := cfg.Templates[0]
	if p.Name != "py" || p.Network != providers.NetworkFull || len(p.Networks) != 2 || p.Resources.MemoryBytes != 1024 ||
		string(p.ProviderOptions) != `{"a":{"b":1}}` || len(p.Allow) != 1 || p.Pool != 3 {
		t.Errorf("template %+v", p)
	}
}

func TestConfigFileErrors(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown field":  {"listen: x\nlisten_at: y\n", "[2:1]"},
		"nested unknown": {"templates:\n  - name: a\n    memory: 3\n", "[3:5]"},
		"bad duration":   {"limits: {max_timeout: fast}\n", `invalid duration "fast"`},
		"bad network":    {"templates: [{name: a, network: some}]\n", "none, proxy, full"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readConfig(writeFile(t, "c.yaml", c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestServeRefusals(t *testing.T) {
	never := func(string) bool { return false }
	base := serveFlags{listen: "127.0.0.1:0", provider: "local", stateDir: t.TempDir(), logLevel: "warn", logFormat: "text"}
	for name, c := range map[string]struct {
		change func(*serveFlags)
		want   string
	}{
		"no such provider": {func(f *serveFlags) { f.provider = "vm" }, "none of local"},
		"not built":        {func(f *serveFlags) { f.provider = "docker" }, "no provider \"docker\" yet"},
		"half of TLS":      {func(f *serveFlags) { f.tlsCert = "x" }, "--tls-key"},
		"no tokens file":   {func(f *serveFlags) { f.tokensFile = "/nonexistent" }, "tokens file"},
		"no config":        {func(f *serveFlags) { f.config = "/nonexistent" }, "--config"},
		"negative drain":   {func(f *serveFlags) { f.stop.drain = -1 }, "--drain"},
		"log level":        {func(f *serveFlags) { f.logLevel = "loud" }, "--log-level"},
	} {
		t.Run(name, func(t *testing.T) {
			f := base
			c.change(&f)
			var stderr bytes.Buffer
			err := serve(context.Background(), f, never, &stderr)
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
	if !strings.HasPrefix(token, "sgt_") || strings.Contains(entry.String(), token) || !strings.Contains(entry.String(), `tenant: "ci"`) {
		t.Fatalf("%q %q", out.String(), entry.String())
	}
}
