package policy

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/egress"
	"github.com/sandgate/sandgate/server/fault"
)

// The field of a request that has rules, in CreateSandbox and in UpdateSandbox.
const (
	createRules = "spec.network.allow"
	updateRules = "network.allow"
)

// ceiling returns what a sandbox's rules of this template may allow, and false if
// that is nothing.
func (p *Policy) ceiling(t *Template) (egress.Layer, bool) {
	layer := egress.Layer{Name: fmt.Sprintf("template %q", t.Name), Rules: t.Egress, AnyPublic: len(t.Egress) == 0}
	return layer, len(t.Egress) > 0 || p.cfg.EgressAnyPublic
}

// checkEgress checks the groups and the rules of all templates.
func (p *Policy) checkEgress() error {
	for name, rules := range p.cfg.EgressGroups {
		if err := p.checkOperators(fmt.Sprintf("egress group %q", name), nil, rules); err != nil {
			return err
		}
	}
	for _, t := range p.Templates() {
		if err := p.checkOperators(fmt.Sprintf("template %q: egress", t.Name), p.cfg.EgressGroups, t.Egress); err != nil {
			return err
		}
	}
	return nil
}

// checkOperators checks rules of the configuration. Which tenant uses them is
// known later, so a secret must be there for any one.
func (p *Policy) checkOperators(name string, groups egress.Groups, rules []*sandboxv1.EgressRule) error {
	if _, err := egress.Compile(groups, egress.Layer{Name: name, Rules: rules}); err != nil {
		return err
	}
	if p.cfg.NoAuthority && egress.ReadsRequests(groups, rules) {
		return fmt.Errorf("%s: %s", name, noAuthority)
	}
	return p.checkSecrets(name, "", groups, rules)
}

// noAuthority is why a server refuses rules for which it would have to end TLS.
const noAuthority = "rules with methods, paths or a secret need a spec secret in the server's configuration (spec_secret_file)"

// checkSecrets returns a *egress.RuleError for the first secret that the tenant, or
// with "" every tenant, may not use as the rules do.
func (p *Policy) checkSecrets(name, tenant string, groups egress.Groups, rules []*sandboxv1.EgressRule) error {
	uses, err := egress.SecretUses(name, groups, rules)
	if err != nil {
		return err
	}
	for _, use := range uses {
		problem := "the server has no secrets"
		if p.cfg.Secrets != nil {
			problem = p.cfg.Secrets.Check(tenant, use.Name, use.Hosts)
		}
		if problem != "" {
			return &egress.RuleError{Layer: name, Field: use.Field + ".secret.name", Message: problem}
		}
	}
	return nil
}

// ReadsRequests reports whether the server ends TLS of some connections of a
// sandbox.
func (p *Policy) ReadsRequests(spec providers.Spec) bool {
	if t, err := p.Template(spec.Template); err == nil && egress.ReadsRequests(p.cfg.EgressGroups, t.Egress) {
		return true
	}
	own, err := EgressRules(spec)
	return err == nil && egress.ReadsRequests(p.cfg.EgressGroups, own)
}

// egressRules checks a request's rules and returns them as Spec.Egress has them.
func (p *Policy) egressRules(t *Template, tenant, field string, mode providers.NetworkMode, rules []*sandboxv1.EgressRule) ([]byte, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	if mode != providers.NetworkProxy {
		var v Violations
		v.Add(field, "is only for the mode PROXY")
		return nil, v.Err()
	}
	if err := p.checkSecrets("the request", tenant, p.cfg.EgressGroups, rules); err != nil {
		return nil, invalidRule(field, err)
	}
	if p.cfg.NoAuthority && egress.ReadsRequests(p.cfg.EgressGroups, rules) {
		return nil, fault.Unsupported("egress_requests", "%s: %s", field, noAuthority)
	}
	ceiling, ok := p.ceiling(t)
	if !ok {
		return nil, t.forbids(field, "the template's egress has no rules")
	}
	_, err := egress.Compile(p.cfg.EgressGroups, ceiling, egress.Layer{Name: "the request", Rules: rules})
	var wrong *egress.RuleError
	switch {
	case errors.Is(err, egress.ErrOutside) && errors.As(err, &wrong):
		return nil, t.forbids(field+wrong.Field, "%s", wrong.Message)
	case err != nil:
		return nil, invalidRule(field, err)
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(&sandboxv1.Network{Allow: rules})
}

func invalidRule(field string, err error) error {
	var wrong *egress.RuleError
	if !errors.As(err, &wrong) {
		return err
	}
	var v Violations
	v.Add(field+wrong.Field, "%s", wrong.Message)
	return v.Err()
}

// NewEgress returns the rules of an update of this sandbox, or nil if the update
// has none.
func (p *Policy) NewEgress(spec providers.Spec, network *sandboxv1.Network) (*[]byte, error) {
	if network == nil {
		return nil, nil
	}
	var v Violations
	switch {
	case network.GetMode() != sandboxv1.NetworkMode_NETWORK_MODE_UNSPECIFIED:
		v.Add("network.mode", "cannot change; leave it unset")
	case spec.Network != providers.NetworkProxy:
		v.Add("network", "is only for sandboxes with the mode PROXY; this one has %s", spec.Network)
	}
	if err := v.Err(); err != nil {
		return nil, err
	}
	t, err := p.Template(spec.Template)
	if err != nil {
		return nil, err
	}
	if !t.allows(FieldNetwork) {
		return nil, t.forbids("network", "a request must not set it; the template's allow has no %q", FieldNetwork)
	}
	rules, err := p.egressRules(t, spec.Tenant, updateRules, spec.Network, network.GetAllow())
	return &rules, err
}

// EgressRules returns a sandbox's own rules.
func EgressRules(spec providers.Spec) ([]*sandboxv1.EgressRule, error) {
	var n sandboxv1.Network
	if err := proto.Unmarshal(spec.Egress, &n); err != nil {
		return nil, fmt.Errorf("the sandbox's network rules cannot be decoded: %w", err)
	}
	return n.GetAllow(), nil
}

// Egress returns the policy of a sandbox's connections: the rules of its template,
// as they are now, narrowed by its own. After an error nothing is allowed.
func (p *Policy) Egress(spec providers.Spec) (*egress.Policy, error) {
	own, err := EgressRules(spec)
	if err != nil {
		return nil, err
	}
	t, err := p.Template(spec.Template)
	if err != nil {
		return nil, err
	}
	ceiling, ok := p.ceiling(t)
	if !ok {
		return nil, nil
	}
	return egress.Compile(p.cfg.EgressGroups, ceiling, egress.Layer{Name: "the sandbox", Rules: own})
}
