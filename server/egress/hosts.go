package egress

import "strings"

// hostTable holds the ports of patterns of hosts.
type hostTable struct {
	exact map[string]ports
	below map[string]ports // *.key
	all   ports            // *
}

func (t *hostTable) put(host pattern, at ports) {
	switch {
	case host.name == "":
		t.all = t.all.union(at)
	case host.below:
		t.below = with(t.below, host.name, at)
	default:
		t.exact = with(t.exact, host.name, at)
	}
}

func with(table map[string]ports, name string, at ports) map[string]ports {
	if table == nil {
		table = map[string]ports{}
	}
	table[name] = table[name].union(at)
	return table
}

// ports returns the ports of everything that the pattern matches.
func (t *hostTable) ports(host pattern) ports {
	allowed := t.all
	if host.name == "" {
		return allowed
	}
	rest := host.name
	if host.below {
		allowed = join(allowed, t.below[rest])
	} else {
		allowed = join(allowed, t.exact[rest])
	}
	for len(t.below) > 0 {
		_, parent, more := strings.Cut(rest, ".")
		if !more {
			break
		}
		allowed = join(allowed, t.below[parent])
		rest = parent
	}
	return allowed
}

// join is union without an allocation in the usual case that one is empty.
func join(p, q ports) ports {
	switch {
	case q.empty():
		return p
	case p.empty():
		return q
	}
	return p.union(q)
}
