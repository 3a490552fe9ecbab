package egress

import (
	"fmt"
	"net/netip"
)

// layer is a compiled Layer: the hosts and CIDRs of all its rules, and again of
// those without methods, paths and secrets, the free
// ones.
type layer struct {
	name      string
	hosts     hostTable
	freeHosts hostTable
	nets      prefixes[ports]
	freeNets  prefixes[ports]
	limited   []rule
	any       bool // AnyPublic
}

func compileLayer(name string, rules []rule) layer {
	l := layer{name: name}
	for _, r := range rules {
		if r.limited() {
			l.limited = append(l.limited, r)
		}
		for _, host := range r.hosts {
			l.hosts.put(host, r.ports)
			if !r.limited() {
				l.freeHosts.put(host, r.ports)
			}
		}
		for _, prefix := range r.nets {
			l.nets.put(prefix, l.nets.values[prefix].union(r.ports))
			if !r.limited() {
				l.freeNets.put(prefix, l.freeNets.values[prefix].union(r.ports))
			}
		}
	}
	return l
}

// hostPorts returns the ports at which the layer allows everything that the
// pattern matches.
func (l *layer) hostPorts(host pattern) ports {
	if l.any {
		return ports{every: true}
	}
	return l.hosts.ports(host)
}

// netPorts returns the ports at which the CIDRs of nets, the layer's, allow
// everything that a rule with this CIDR would allow. A CIDR allows addresses that are not public only
// if it lies within their block: 0.0.0.0/0 allows every public address and
// nothing else, and 169.254.0.0/16 does not allow the metadata service in it.
func (l *layer) netPorts(nets *prefixes[ports], prefix netip.Prefix) ports {
	block, _, special := blockOf(prefix)
	if l.any {
		return ports{every: !special}
	}
	var allowed ports
	for outer, at := range nets.around(prefix) {
		if !special || within(outer, block) {
			allowed = join(allowed, at)
		}
	}
	return allowed
}

// outside returns an error for the first rule that allows more than the layer,
// or nil. Of a group, one rule that has something in common is enough.
func (l *layer) outside(rules []rule) *RuleError {
	shares := map[string]bool{} // groups, by their field
	var bad *RuleError
	for _, r := range rules {
		outside := l.outsideRule(r)
		switch {
		case r.group == "" && outside != nil:
			return outside
		case r.group != "" && l.sharesAny(r):
			shares[r.field] = true
		}
	}
	for _, r := range rules {
		if r.group != "" && !shares[r.field] {
			bad = &RuleError{Field: r.field + ".group", Message: fmt.Sprintf("%s allows nothing of the group %s", l.name, r.group), outside: true}
			break
		}
	}
	return bad
}

func (l *layer) outsideRule(r rule) *RuleError {
	for i, host := range r.hosts {
		if problem := l.missing(r, l.hostPorts(host)); problem != "" {
			return &RuleError{Field: fmt.Sprintf("%s.hosts[%d]", r.field, i), outside: true,
				Message: fmt.Sprintf("%s does not allow %s%s", l.name, host, problem)}
		}
	}
	for i, prefix := range r.nets {
		if problem := l.missing(r, l.netPorts(&l.nets, prefix)); problem != "" {
			return &RuleError{Field: fmt.Sprintf("%s.cidrs[%d]", r.field, i), outside: true,
				Message: fmt.Sprintf("%s does not allow %s%s", l.name, prefix, problem)}
		}
	}
	return nil
}

// missing returns the end of a sentence about the rule's ports beyond allowed.
func (l *layer) missing(r rule, allowed ports) string {
	if allowed.empty() {
		return " at any port"
	}
	missing := r.ports.without(allowed)
	if len(missing) == 0 || r.byDefault && len(missing) < len(r.ports.list) {
		return ""
	}
	return fmt.Sprintf(" at port %d, only at %s", missing[0], allowed)
}

// sharesAny reports whether the layer allows one host or CIDR of the rule at one
// of its ports.
func (l *layer) sharesAny(r rule) bool {
	for _, host := range r.hosts {
		if !l.hostPorts(host).intersect(r.ports).empty() {
			return true
		}
	}
	for _, prefix := range r.nets {
		if !l.netPorts(&l.nets, prefix).intersect(r.ports).empty() {
			return true
		}
	}
	return false
}
