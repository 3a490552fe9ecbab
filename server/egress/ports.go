package egress

import (
	"fmt"
	"slices"
	"strings"
)

// ports is a set of ports. The zero value is empty.
type ports struct {
	every bool
	list  []uint16 // sorted, unique
}

func newPorts(list ...uint16) ports {
	slices.Sort(list)
	return ports{list: slices.Compact(list)}
}

func (p ports) empty() bool { return !p.every && len(p.list) == 0 }

func (p ports) has(port uint16) bool {
	if p.every {
		return true
	}
	_, found := slices.BinarySearch(p.list, port)
	return found
}

func (p ports) union(q ports) ports {
	if p.every || q.every {
		return ports{every: true}
	}
	return newPorts(slices.Concat(p.list, q.list)...)
}

func (p ports) intersect(q ports) ports {
	if p.every {
		return q
	}
	return ports{every: false, list: slices.DeleteFunc(slices.Clone(p.list), func(port uint16) bool { return !q.has(port) })}
}

// without returns the ports of the list that q lacks.
func (p ports) without(q ports) []uint16 {
	return slices.DeleteFunc(slices.Clone(p.list), q.has)
}

// String returns at most eight ports, such as "80, 443".
func (p ports) String() string {
	const most = 8
	if p.every {
		return "every port"
	}
	var text strings.Builder
	for i, port := range p.list {
		if i == most {
			text.WriteString(", ...")
			break
		}
		if i > 0 {
			text.WriteString(", ")
		}
		fmt.Fprint(&text, port)
	}
	return text.String()
}
