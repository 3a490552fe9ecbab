package main

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const allowHelp = "destination to allow, which implies --network proxy: HOST[:PORT], *.HOST, ADDRESS, CIDR, [IPv6]:PORT, or the name of a group (repeatable)"

// egressRules returns the rules of --allow.
func egressRules(cmd *cobra.Command, values []string) ([]*sandboxv1.EgressRule, error) {
	rules := make([]*sandboxv1.EgressRule, 0, len(values))
	for _, value := range values {
		rule, ok := egressRule(value)
		if !ok {
			return nil, usage(cmd, "--allow is HOST[:PORT], ADDRESS, CIDR, [IPv6]:PORT, or the name of a group, not %q", value)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// egressRule returns the rule of one --allow. A single word without a port is a
// group; a host of one label needs its port.
func egressRule(value string) (*sandboxv1.EgressRule, bool) {
	destination, port, hasPort := cutPort(value)
	rule := &sandboxv1.EgressRule{}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return nil, false
		}
		rule.Ports = []uint32{uint32(n)}
	}
	if addr, err := netip.ParseAddr(destination); err == nil && addr.Zone() == "" {
		rule.Cidrs = []string{netip.PrefixFrom(addr, addr.BitLen()).String()}
		return rule, true
	}
	if prefix, err := netip.ParsePrefix(destination); err == nil {
		rule.Cidrs = []string{prefix.String()}
		return rule, true
	}
	if destination == "" || strings.ContainsAny(destination, ":/[] ") {
		return nil, false
	}
	if !hasPort && destination != "*" && !strings.Contains(destination, ".") {
		rule.Group = destination
		return rule, true
	}
	rule.Hosts = []string{destination}
	return rule, true
}

// cutPort splits off a port. An IPv6 address or prefix has one only after
// brackets.
func cutPort(value string) (destination, port string, found bool) {
	if inner, ok := strings.CutPrefix(value, "["); ok {
		inner, rest, closed := strings.Cut(inner, "]")
		if !closed {
			return value, "", false
		}
		port, found = strings.CutPrefix(rest, ":")
		if !found && rest != "" {
			return value, "", false
		}
		return inner, port, found
	}
	if strings.Count(value, ":") > 1 {
		return value, "", false
	}
	return strings.Cut(value, ":")
}
