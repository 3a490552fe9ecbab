package policy

import (
	"strings"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/egress"
	"github.com/sandgate/sandgate/server/fault"
)

func rule(host string) *sandboxv1.EgressRule { return &sandboxv1.EgressRule{Hosts: []string{host}} }

func newPolicy(t *testing.T, anyPublic bool, rules ...*sandboxv1.EgressRule) *Policy {
	t.Helper()
	p, err := New(Config{
		Templates:       []Template{{Name: "default", Networks: []providers.NetworkMode{providers.NetworkProxy}, Egress: rules}},
		EgressGroups:    egress.Groups{"packages": {rule("*.packages.example")}},
		EgressAnyPublic: anyPublic,
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func spec(t *testing.T, p *Policy, n *sandboxv1.Network) (providers.Spec, error) {
	t.Helper()
	return p.Spec("tenant", "id", &sandboxv1.CreateSandboxRequest{Spec: &sandboxv1.SandboxSpec{Network: n}})
}

func allowed(t *testing.T, p *Policy, s providers.Spec, host string, port uint32) bool {
	t.Helper()
	policy, err := p.Egress(s)
	if err != nil {
		t.Fatal(err)
	}
	target, err := egress.ParseTarget(host, port)
	if err != nil {
		t.Fatal(err)
	}
	return policy.Check(target) == nil
}

func TestEgressOfTemplateAndRequest(t *testing.T) {
	proxy := sandboxv1.NetworkMode_NETWORK_MODE_PROXY
	for name, c := range map[string]struct {
		any      bool
		template []*sandboxv1.EgressRule
		network  *sandboxv1.Network
		host     string
		want     bool
	}{
		"the template's":             {false, []*sandboxv1.EgressRule{rule("a.example")}, &sandboxv1.Network{Mode: proxy}, "a.example", true},
		"narrowed":                   {false, []*sandboxv1.EgressRule{rule("*.example")}, &sandboxv1.Network{Mode: proxy, Allow: []*sandboxv1.EgressRule{rule("a.example")}}, "b.example", false},
		"rules imply the mode":       {false, []*sandboxv1.EgressRule{rule("*.example")}, &sandboxv1.Network{Allow: []*sandboxv1.EgressRule{rule("a.example")}}, "a.example", true},
		"no rules at all":            {false, nil, &sandboxv1.Network{Mode: proxy}, "a.example", false},
		"any public, no rules":       {true, nil, &sandboxv1.Network{Mode: proxy}, "a.example", false},
		"any public":                 {true, nil, &sandboxv1.Network{Mode: proxy, Allow: []*sandboxv1.EgressRule{rule("a.example")}}, "a.example", true},
		"a group":                    {true, nil, &sandboxv1.Network{Mode: proxy, Allow: []*sandboxv1.EgressRule{{Group: "packages"}}}, "x.packages.example", true},
		"any public, with a ceiling": {true, []*sandboxv1.EgressRule{rule("a.example")}, &sandboxv1.Network{Mode: proxy}, "b.example", false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPolicy(t, c.any, c.template...)
			s, err := spec(t, p, c.network)
			if err != nil || s.Network != providers.NetworkProxy {
				t.Fatal(s.Network, err)
			}
			if got := allowed(t, p, s, c.host, 443); got != c.want {
				t.Errorf("%s is allowed: %v", c.host, got)
			}
		})
	}
}

func TestEgressErrors(t *testing.T) {
	for name, c := range map[string]struct {
		any     bool
		network *sandboxv1.Network
		reason  sandboxv1.ErrorReason
		text    string
	}{
		"outside":     {false, &sandboxv1.Network{Allow: []*sandboxv1.EgressRule{rule("b.test")}}, sandboxv1.ErrorReason_ERROR_REASON_TEMPLATE_FORBIDS, "spec.network.allow[0].hosts[0]"},
		"malformed":   {false, &sandboxv1.Network{Allow: []*sandboxv1.EgressRule{rule("a.example"), rule("a b")}}, sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID, "spec.network.allow[1].hosts[0]"},
		"group":       {false, &sandboxv1.Network{Allow: []*sandboxv1.EgressRule{{Group: "none"}}}, sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID, "packages"},
		"other mode":  {false, &sandboxv1.Network{Mode: sandboxv1.NetworkMode_NETWORK_MODE_NONE, Allow: []*sandboxv1.EgressRule{rule("a.example")}}, sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID, "only for the mode PROXY"},
		"not allowed": {false, &sandboxv1.Network{Mode: sandboxv1.NetworkMode_NETWORK_MODE_FULL}, sandboxv1.ErrorReason_ERROR_REASON_TEMPLATE_FORBIDS, "full is not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := spec(t, newPolicy(t, c.any, rule("*.example")), c.network)
			if f := fault.From(t.Context(), err); err == nil || f.Reason != c.reason || !strings.Contains(f.Error(), c.text) {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := New(Config{Templates: []Template{{Name: "default", Egress: []*sandboxv1.EgressRule{{Group: "none"}}}}}); err == nil {
		t.Error("a template with an unknown group")
	}
	if _, err := New(Config{Templates: []Template{DefaultTemplate()}, EgressGroups: egress.Groups{"a": {rule("a b")}}}); err == nil {
		t.Error("a malformed group")
	}
}

func TestNewEgress(t *testing.T) {
	p := newPolicy(t, false, rule("*.example"))
	s, err := spec(t, p, &sandboxv1.Network{Allow: []*sandboxv1.EgressRule{rule("a.example")}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.NewEgress(s, nil); got != nil || err != nil {
		t.Errorf("without rules: %v %v", got, err)
	}
	changed, err := p.NewEgress(s, &sandboxv1.Network{Allow: []*sandboxv1.EgressRule{rule("b.example")}})
	if err != nil {
		t.Fatal(err)
	}
	s.Egress = *changed
	if allowed(t, p, s, "a.example", 443) || !allowed(t, p, s, "b.example", 443) {
		t.Error("the new rules are not in force")
	}
	if changed, err = p.NewEgress(s, &sandboxv1.Network{}); err != nil || *changed != nil {
		t.Errorf("back to the template's: %v %v", changed, err)
	}
	for name, bad := range map[string]*sandboxv1.Network{
		"mode":    {Mode: sandboxv1.NetworkMode_NETWORK_MODE_FULL},
		"outside": {Allow: []*sandboxv1.EgressRule{rule("b.test")}},
	} {
		if _, err := p.NewEgress(s, bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	s.Network = providers.NetworkNone
	if _, err := p.NewEgress(s, &sandboxv1.Network{}); err == nil {
		t.Error("a sandbox with another mode")
	}
	// Rules that a narrower template no longer allows deny everything.
	s.Egress, err = newPolicy(t, true).egressRules(p.Templates()[0], "t", createRules, providers.NetworkProxy, []*sandboxv1.EgressRule{rule("c.example")})
	if err != nil {
		t.Fatal(err)
	}
	if policy, err := newPolicy(t, false, rule("other.test")).Egress(s); err == nil || policy != nil {
		t.Errorf("got %v %v", policy, err)
	}
}
