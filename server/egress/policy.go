package egress

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Groups are an operator's named lists of rules.
type Groups map[string][]*sandboxv1.EgressRule

// hint lists some names, for errors.
func (g Groups) hint() string {
	const most = 10
	names := slices.Sorted(maps.Keys(g))
	switch {
	case len(names) == 0:
		return "; the server has no groups"
	case len(names) > most:
		names = append(names[:most], "...")
	}
	return "; the server has " + strings.Join(names, ", ")
}

// Layer is one place where rules are written.
type Layer struct {
	// Name is the layer's name in errors, such as `template "default"`.
	Name string
	// Rules allow destinations. A layer without rules does not narrow the others.
	Rules []*sandboxv1.EgressRule
	// AnyPublic makes a layer that has no rules and allows every name and every
	// public address, at every port. It bounds later layers, and allows nothing
	// by itself.
	AnyPublic bool
}

// Policy holds what is allowed. It never changes: new rules make a new Policy.
// The zero value and nil allow nothing.
type Policy struct {
	layers []layer // every one must allow the target
}

// Compile makes the policy that allows what every layer allows. Layers are
// ordered from the widest, such as the template's, to the narrowest. A rule must
// lie within all earlier layers: each of its hosts and CIDRs at all its ports.
// Of the default ports, and of the rules of a group, something in common is
// enough; the policy does not allow the rest. Methods and paths are compared for
// each request only: every layer must allow it.
//
// The policy allows nothing if no layer has rules. Errors are *RuleError, and
// match ErrOutside if a rule allows more than an earlier layer.
func Compile(groups Groups, layers ...Layer) (*Policy, error) {
	policy := &Policy{}
	hasRules := false
	for _, from := range layers {
		if from.AnyPublic {
			policy.layers = append(policy.layers, layer{name: from.Name, any: true})
			continue
		}
		if len(from.Rules) == 0 {
			continue
		}
		hasRules = true
		rules, err := parseRules(from.Name, groups, from.Rules)
		if err != nil {
			return nil, err
		}
		for i := range policy.layers {
			if outside := policy.layers[i].outside(rules); outside != nil {
				outside.Layer = from.Name
				return nil, outside
			}
		}
		policy.layers = append(policy.layers, compileLayer(from.Name, rules))
	}
	if !hasRules {
		return &Policy{}, nil
	}
	return policy, nil
}

// Check returns nil if every layer allows the target, and otherwise a *Denied.
// For a name it does not look at addresses: they are checked when the name is
// resolved, by Dialer.Open.
func (p *Policy) Check(target Target) error {
	if target.port == 0 {
		return malformed(target.host, 0, "ports are 1 to 65535")
	}
	if p == nil || len(p.layers) == 0 {
		return target.denied(ReasonNoRule, "the sandbox has no rules; add %s", target.rule())
	}
	for i := range p.layers {
		if err := p.layers[i].check(target); err != nil {
			return err
		}
	}
	return nil
}

// CheckAddr returns nil if the policy allows a connection that was asked for as
// target, and goes to addr: Check, and for a name the check of its address.
func (p *Policy) CheckAddr(target Target, addr netip.Addr) error {
	if err := p.Check(target); err != nil {
		return err
	}
	addr = addr.Unmap()
	if target.IsAddr() {
		if addr != target.addr {
			return target.denied(ReasonAddress, "the connection goes to another address")
		}
		return nil
	}
	_, kind, special := blockOf(single(addr))
	for i := range p.layers {
		if special && !p.layers[i].netPorts(&p.layers[i].nets, single(addr)).has(target.port) {
			return target.refused(p.layers[i].name, addr, kind)
		}
	}
	return nil
}

// checkExact returns nil if every layer has a CIDR of this address alone, and
// otherwise a *Denied.
func (p *Policy) checkExact(target Target, addr netip.Addr, kind string) error {
	for i := range p.layers {
		l := &p.layers[i]
		if !l.nets.values[single(addr)].has(target.port) {
			return target.refused(l.name, addr, kind)
		}
	}
	return nil
}

// Ports returns the ports at which the policy allows a host name; none if host
// is not a name that it allows.
func (p *Policy) Ports(host string) []uint16 {
	name, addr, problem := parseHost(host)
	if p == nil || len(p.layers) == 0 || problem != "" || addr.IsValid() {
		return nil
	}
	allowed := ports{every: true}
	for i := range p.layers {
		allowed = allowed.intersect(p.layers[i].hostPorts(pattern{name: name}))
	}
	return slices.Clone(allowed.list)
}

func (l *layer) check(target Target) error {
	var allowed ports
	if target.IsAddr() {
		allowed = l.netPorts(&l.freeNets, single(target.addr))
	} else {
		allowed = l.hostPorts(pattern{name: target.host})
	}
	switch {
	case allowed.has(target.port):
		return nil
	case l.any:
		_, kind, _ := blockOf(single(target.addr))
		return target.refused(l.name, target.addr, kind)
	case allowed.empty():
		return target.denied(ReasonNoRule, "no rule of %s allows it; it needs %s", l.name, target.rule())
	}
	return target.denied(ReasonPort, "the rules of %s allow %s only at %s; it needs %s",
		l.name, target.Host(), allowed, target.rule())
}

func (t Target) denied(reason Reason, format string, args ...any) *Denied {
	return newDenied(reason, t.String(), format, args...)
}

// refused is the denial of an address that is not public.
func (t Target) refused(layer string, addr netip.Addr, kind string) *Denied {
	subject := "it is"
	if !t.IsAddr() {
		subject = t.host + " resolves to " + addr.String() + ","
	}
	return t.denied(ReasonAddress, "%s %s; %s needs a rule with cidrs: [%q], ports: [%d]", subject, kind, layer, single(addr), t.port)
}

// rule returns the rule that allows the target, as text.
func (t Target) rule() string {
	if t.IsAddr() {
		return fmt.Sprintf("cidrs: [%q], ports: [%d]", single(t.addr), t.port)
	}
	return fmt.Sprintf("hosts: [%q], ports: [%d]", t.host, t.port)
}
