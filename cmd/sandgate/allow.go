package main

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const allowHelp = "destination to allow, which implies --network proxy: HOST[:PORT], *.HOST, ADDRESS, CIDR, [IPv6]:PORT, or the name of a group (repeatable)"

const secretHelp = "secret that the server puts into requests to a host, which implies --network proxy: [USER@]HOST[:PORT]=NAME; with USER as HTTP Basic, else as a bearer token (repeatable)"

// egressRules returns the rules of --allow and --secret.
func egressRules(cmd *cobra.Command, values, secrets []string) ([]*sandboxv1.EgressRule, error) {
	rules := make([]*sandboxv1.EgressRule, 0, len(values)+len(secrets))
	for _, value := range secrets {
		rule, ok := secretRule(value)
		if !ok {
			return nil, usage(cmd, "--secret is [USER@]HOST[:PORT]=NAME, not %q", value)
		}
		rules = append(rules, rule)
	}
	for _, value := range values {
		rule, ok := egressRule(value)
		if !ok {
			return nil, usage(cmd, "--allow is HOST[:PORT], ADDRESS, CIDR, [IPv6]:PORT, or the name of a group, not %q", value)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// secretRule returns the rule of one --secret.
func secretRule(value string) (*sandboxv1.EgressRule, bool) {
	destination, name, found := strings.Cut(value, "=")
	user, host, hasUser := strings.Cut(destination, "@")
	if !hasUser {
		user, host = "", destination
	}
	rule, ok := egressRule(host)
	if !ok || !found || name == "" || hasUser && user == "" || len(rule.GetHosts()) == 0 {
		return nil, false
	}
	rule.Secret = &sandboxv1.EgressSecret{Name: name, User: user}
	return rule, true
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
