package policy

import (
	"strings"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/egress"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/secret"
)

func withSecret(name string, hosts ...string) *sandboxv1.EgressRule {
	return &sandboxv1.EgressRule{Hosts: hosts, Secret: &sandboxv1.EgressSecret{Name: name}}
}

func secretConfig(t *testing.T) Config {
	t.Helper()
	store, err := secret.New([]secret.Entry{
		{Name: "git", Tenants: []string{"tenant"}, Hosts: []string{"git.example"}, Env: "X"},
		{Name: "theirs", Tenants: []string{"other"}, Hosts: []string{"*"}, Env: "X"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Templates: []Template{{Name: "default", Network: providers.NetworkProxy, Egress: []*sandboxv1.EgressRule{rule("*.example"), {Group: "theirs"}}}},
		Secrets:   store, EgressGroups: egress.Groups{"theirs": {withSecret("theirs", "a.example")}},
	}
}

func TestSecretsOfRequests(t *testing.T) {
	cfg := secretConfig(t)
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		rule *sandboxv1.EgressRule
		want string // of the error; empty: none
	}{
		"its own":            {withSecret("git", "git.example"), ""},
		"another tenant's":   {withSecret("theirs", "a.example"), "spec.network.allow[0].secret.name"},
		"unknown":            {withSecret("none", "a.example"), "spec.network.allow[0].secret.name"},
		"another host":       {withSecret("git", "a.example"), "may not be sent to a.example"},
		"a wildcard":         {withSecret("git", "*.example"), "may not be sent to *.example"},
		"a group of another": {&sandboxv1.EgressRule{Group: "theirs"}, "spec.network.allow[0].secret.name"},
	} {
		s, err := spec(t, p, &sandboxv1.Network{Allow: []*sandboxv1.EgressRule{c.rule}})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", name, err)
		}
		if err == nil && !p.ReadsRequests(s) {
			t.Errorf("%s: TLS is not ended", name)
		}
	}
	cfg.NoAuthority = true
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "spec_secret_file") {
		t.Errorf("a configuration that needs a spec secret: %v", err)
	}
	cfg.EgressGroups, cfg.Templates[0].Egress = nil, []*sandboxv1.EgressRule{rule("*.example")}
	if p, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	_, err = spec(t, p, &sandboxv1.Network{Allow: []*sandboxv1.EgressRule{withSecret("git", "git.example")}})
	if f := fault.From(t.Context(), err); err == nil || f.Reason != sandboxv1.ErrorReason_ERROR_REASON_FEATURE_UNSUPPORTED {
		t.Errorf("a request that needs a spec secret: %v", err)
	}
	if s, err := spec(t, p, &sandboxv1.Network{Allow: []*sandboxv1.EgressRule{rule("a.example")}}); err != nil || p.ReadsRequests(s) {
		t.Errorf("plain rules: %v", err)
	}
	for name, change := range map[string]func(*Config){
		"an unknown secret": func(c *Config) { c.Templates[0].Egress = []*sandboxv1.EgressRule{withSecret("none", "a.example")} },
		"no secrets":        func(c *Config) { c.Secrets = nil },
	} {
		bad := secretConfig(t)
		change(&bad)
		if _, err := New(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
