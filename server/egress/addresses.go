package egress

import (
	"cmp"
	"net/netip"
	"slices"
)

// AddressRange is a CIDR and the ports at which a Policy allows its addresses.
type AddressRange struct {
	Prefix netip.Prefix
	Ports  []uint16
}

// maxAddressRanges bounds what Addresses returns.
const maxAddressRanges = 256

// unroutable are blocks that mean something else within a sandbox: its own loopback
// and link-local addresses, those of names, and those that are no destination of TCP.
var unroutable = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("::/127"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
}

// Addresses returns the CIDRs that the policy allows without a name, at most 256, for
// routes within a sandbox. CIDRs within a sandbox's own blocks are left out. An address
// of a range may still be denied, such as a private one of 0.0.0.0/0.
func (p *Policy) Addresses() []AddressRange {
	if p == nil {
		return nil
	}
	allowed := map[netip.Prefix]ports{}
	for i := range p.layers {
		for prefix := range p.layers[i].freeNets.values {
			if _, done := allowed[prefix]; !done {
				allowed[prefix] = p.freePorts(prefix)
			}
		}
	}
	var all []AddressRange
	for prefix, at := range allowed {
		own := slices.ContainsFunc(unroutable, func(block netip.Prefix) bool { return within(prefix, block) })
		if !own && len(at.list) > 0 {
			all = append(all, AddressRange{Prefix: prefix, Ports: at.list})
		}
	}
	slices.SortFunc(all, func(a, b AddressRange) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	return all[:min(len(all), maxAddressRanges)]
}

// freePorts returns the ports at which every layer allows the whole prefix.
func (p *Policy) freePorts(prefix netip.Prefix) ports {
	allowed := ports{every: true}
	for i := range p.layers {
		l := &p.layers[i]
		if l.any {
			continue // It bounds the rules of the others, and each address again.
		}
		allowed = allowed.intersect(l.netPorts(&l.freeNets, prefix))
	}
	return allowed
}
