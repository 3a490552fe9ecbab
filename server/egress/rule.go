package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// ErrOutside is wrapped by a RuleError whose rule is well formed, but allows
// more than an earlier layer does.
var ErrOutside = errors.New("rule outside of an earlier layer")

// Limits of the rules of one layer.
const (
	maxRules = 64
	maxHosts = 256 // and CIDRs, per rule
	maxPorts = 64  // and methods and paths, per rule
)

// RuleError is a rule that Compile refuses.
type RuleError struct {
	// Layer is the name of the rule's layer, or "group NAME".
	Layer string
	// Field is the rule's field within its list, such as "[2].hosts[0]".
	Field string
	// Message says what is wrong and what to write instead.
	Message string

	outside bool
}

// Error returns layer, field and message.
func (e *RuleError) Error() string {
	return fmt.Sprintf("%s: rule%s: %s", e.Layer, e.Field, e.Message)
}

// Is reports whether target is ErrOutside and the rule allows more than an
// earlier layer.
func (e *RuleError) Is(target error) bool { return target == ErrOutside && e.outside }

// rule is a parsed EgressRule, with its group's rules in its place.
type rule struct {
	field     string // "[2]"
	hosts     []pattern
	nets      []netip.Prefix
	ports     ports
	byDefault bool // the rule names no ports
	group     string
	methods   []string // empty: all
	paths     []string // empty: all
	secret    *Secret  // nil: none
}

// pattern is a host of a rule: a name, every name below it, or, with an empty
// name, every name.
type pattern struct {
	name  string
	below bool
}

func (p pattern) String() string {
	switch {
	case p.name == "":
		return "*"
	case p.below:
		return "*." + p.name
	}
	return p.name
}

// parseRules parses rules, and those of the groups that they name. layer is the
// Layer of its errors, each a *RuleError.
func parseRules(layer string, groups Groups, rules []*sandboxv1.EgressRule) ([]rule, error) {
	if len(rules) > maxRules {
		return nil, &RuleError{Layer: layer, Message: fmt.Sprintf("there are %d rules; at most %d are allowed", len(rules), maxRules)}
	}
	var parsed []rule
	for i, r := range rules {
		field := fmt.Sprintf("[%d]", i)
		if r.GetGroup() == "" {
			one, bad := parseRule(r)
			if bad != nil {
				bad.Layer, bad.Field = layer, field+bad.Field
				return nil, bad
			}
			one.field = field
			parsed = append(parsed, one)
			continue
		}
		members, err := parseGroup(layer, field, groups, r)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, members...)
	}
	return parsed, nil
}

// parseGroup returns the rules of the group that r names. Groups do not nest.
func parseGroup(layer, field string, groups Groups, r *sandboxv1.EgressRule) ([]rule, error) {
	name := r.GetGroup()
	if len(r.GetHosts())+len(r.GetCidrs())+len(r.GetPorts())+len(r.GetMethods())+len(r.GetPaths()) > 0 || r.GetSecret() != nil {
		return nil, &RuleError{Layer: layer, Field: field + ".group", Message: "a rule with a group has no other fields; write two rules"}
	}
	members, ok := groups[name]
	if !ok {
		return nil, &RuleError{Layer: layer, Field: field + ".group",
			Message: fmt.Sprintf("there is no group %q%s", shown(name), groups.hint())}
	}
	parsed := make([]rule, 0, len(members))
	for i, member := range members {
		if member.GetGroup() != "" {
			return nil, &RuleError{Layer: "group " + name, Field: fmt.Sprintf("[%d].group", i), Message: "a group cannot name another group"}
		}
		one, bad := parseRule(member)
		if bad != nil {
			bad.Layer, bad.Field = "group "+name, fmt.Sprintf("[%d]", i)+bad.Field
			return nil, bad
		}
		one.field, one.group = field, name
		parsed = append(parsed, one)
	}
	return parsed, nil
}

// parseRule parses a rule without a group. The error lacks its layer, and the
// rule's index.
func parseRule(r *sandboxv1.EgressRule) (rule, *RuleError) {
	if len(r.GetHosts())+len(r.GetCidrs()) == 0 {
		return rule{}, &RuleError{Field: ".hosts", Message: "a rule needs hosts, CIDRs or a group"}
	}
	for _, list := range []struct {
		field      string
		have, most int
	}{{".hosts", len(r.GetHosts()), maxHosts}, {".cidrs", len(r.GetCidrs()), maxHosts}, {".ports", len(r.GetPorts()), maxPorts},
		{".methods", len(r.GetMethods()), maxPorts}, {".paths", len(r.GetPaths()), maxPorts}} {
		if list.have > list.most {
			return rule{}, &RuleError{Field: list.field, Message: fmt.Sprintf("there are %d; at most %d are allowed", list.have, list.most)}
		}
	}
	var parsed rule
	for i, host := range r.GetHosts() {
		p, problem := parsePattern(host)
		if problem != "" {
			return rule{}, &RuleError{Field: fmt.Sprintf(".hosts[%d]", i), Message: fmt.Sprintf("%q: %s", shown(host), problem)}
		}
		parsed.hosts = append(parsed.hosts, p)
	}
	for i, cidr := range r.GetCidrs() {
		prefix, problem := parsePrefix(cidr)
		if problem != "" {
			return rule{}, &RuleError{Field: fmt.Sprintf(".cidrs[%d]", i), Message: fmt.Sprintf("%q: %s", shown(cidr), problem)}
		}
		parsed.nets = append(parsed.nets, prefix)
	}
	var bad *RuleError
	if parsed.secret, bad = parseSecret(r.GetSecret()); bad != nil {
		return rule{}, bad
	}
	list := []uint16{80, 443}
	if parsed.secret != nil {
		list = []uint16{443}
	}
	if len(r.GetPorts()) > 0 {
		list = list[:0]
	}
	for i, port := range r.GetPorts() {
		if port == 0 || port > 65535 {
			return rule{}, &RuleError{Field: fmt.Sprintf(".ports[%d]", i), Message: "ports are 1 to 65535"}
		}
		if port == 80 && parsed.secret != nil {
			return rule{}, &RuleError{Field: fmt.Sprintf(".ports[%d]", i), Message: "a secret is sent over TLS only, which port 80 does not have"}
		}
		list = append(list, uint16(port))
	}
	if bad := parsed.parseRequests(r.GetMethods(), r.GetPaths()); bad != nil {
		return rule{}, bad
	}
	if parsed.limited() && len(parsed.hosts) == 0 {
		return rule{}, &RuleError{Field: ".hosts", Message: "a rule with methods, paths or a secret needs hosts"}
	}
	parsed.ports, parsed.byDefault = newPorts(list...), len(r.GetPorts()) == 0
	return parsed, nil
}

func parsePattern(host string) (pattern, string) {
	if host == "*" {
		return pattern{}, ""
	}
	base, below := strings.CutPrefix(host, "*.")
	if strings.Contains(base, "*") {
		return pattern{}, `a wildcard is "*.", followed by a name, or "*" alone`
	}
	if strings.Contains(base, "/") {
		return pattern{}, "a host is a name without scheme, path or prefix length; addresses are in cidrs"
	}
	name, addr, problem := parseHost(base)
	switch {
	case problem != "" && strings.Contains(base, ":"):
		return pattern{}, "a host is a name without a port; ports have a field of their own"
	case problem != "":
		return pattern{}, problem
	case addr.IsValid():
		return pattern{}, fmt.Sprintf("it is an address; write it as the CIDR %s", netip.PrefixFrom(addr, addr.BitLen()))
	}
	return pattern{name: name, below: below}, ""
}

// parsePrefix parses a CIDR, or an address as the CIDR of that address alone.
func parsePrefix(cidr string) (netip.Prefix, string) {
	if addr, err := netip.ParseAddr(cidr); err == nil && addr.Zone() == "" {
		cidr = netip.PrefixFrom(addr, addr.BitLen()).String()
	}
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return netip.Prefix{}, `it is not a CIDR such as "192.0.2.0/24" or "2001:db8::/32"`
	}
	if prefix.Addr().Is4In6() {
		if prefix.Bits() < 96 {
			return netip.Prefix{}, "write addresses of IPv4 in the notation of IPv4"
		}
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	if prefix != prefix.Masked() {
		return netip.Prefix{}, fmt.Sprintf("it has bits beyond its prefix; write %s", prefix.Masked())
	}
	return prefix, ""
}
