package egress

import (
	"iter"
	"net/netip"
	"slices"
)

// prefixes holds a value for each of its prefixes. A search takes one look per
// length in use, whatever the number of prefixes.
type prefixes[V any] struct {
	values       map[netip.Prefix]V
	bits4, bits6 []int // lengths in use, the longest first
}

func (p *prefixes[V]) put(prefix netip.Prefix, value V) {
	if p.values == nil {
		p.values = map[netip.Prefix]V{}
	}
	p.values[prefix] = value
	bits := &p.bits6
	if prefix.Addr().Is4() {
		bits = &p.bits4
	}
	if !slices.Contains(*bits, prefix.Bits()) {
		*bits = append(*bits, prefix.Bits())
		slices.SortFunc(*bits, func(a, b int) int { return b - a })
	}
}

// around yields the prefixes that contain all of inner, the longest first.
func (p *prefixes[V]) around(inner netip.Prefix) iter.Seq2[netip.Prefix, V] {
	return func(yield func(netip.Prefix, V) bool) {
		lengths := p.bits6
		if inner.Addr().Is4() {
			lengths = p.bits4
		}
		for _, bits := range lengths {
			if bits > inner.Bits() {
				continue
			}
			outer, err := inner.Addr().Prefix(bits)
			if err != nil {
				return
			}
			if value, ok := p.values[outer]; ok && !yield(outer, value) {
				return
			}
		}
	}
}
