package egress

import (
	"net/netip"
	"strconv"
	"strings"
)

// endsInNumber reports whether programs take the name for an IPv4 address: its
// last label is a number. No top-level domain is one.
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if strings.Trim(last, "0123456789") == "" {
		return true
	}
	_, ok := parsePart(last)
	return ok
}

// parseIPv4 parses the notations of inet_aton, as browsers do: one to four
// parts, each decimal, octal or hexadecimal, the last of which fills the
// remaining bytes.
func parseIPv4(name string) (netip.Addr, bool) {
	parts := strings.Split(name, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var value uint64
	for i, part := range parts {
		number, ok := parsePart(part)
		if !ok {
			return netip.Addr{}, false
		}
		if i < len(parts)-1 {
			if number > 255 {
				return netip.Addr{}, false
			}
			value |= number << (8 * (3 - i))
			continue
		}
		if number >= 1<<(8*(5-len(parts))) {
			return netip.Addr{}, false
		}
		value |= number
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true
}

// parsePart parses one number of an IPv4 address; "0x" alone is 0, as in
// browsers.
func parsePart(part string) (uint64, bool) {
	base := 10
	switch {
	case strings.HasPrefix(part, "0x"):
		part, base = part[2:], 16
		if part == "" {
			return 0, true
		}
	case len(part) > 1 && part[0] == '0':
		part, base = part[1:], 8
	}
	if strings.ContainsAny(part, "_+-") {
		return 0, false
	}
	number, err := strconv.ParseUint(part, base, 64)
	return number, err == nil
}
