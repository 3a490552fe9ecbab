package egress

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// Limits of DNS: bytes of a name without its trailing dot, and of a label.
const (
	maxName  = 253
	maxLabel = 63
)

// Target is where a program asked to connect to: a host name or an address, and
// a port. ParseTarget makes one; every Policy refuses the zero value.
type Target struct {
	host string     // normalized name; empty for an address
	addr netip.Addr // unmapped, without a zone; invalid for a name
	port uint16
}

// ParseTarget normalizes what a program asked for. host is a name or an address
// literal, in any notation that programs use: any case, with a trailing dot, in
// Unicode or punycode, "[::1]" in brackets, IPv4 in decimal, octal and
// hexadecimal with one to four parts, IPv4 mapped to IPv6. The error is a
// *Denied with ReasonMalformed.
func ParseTarget(host string, port uint32) (Target, error) {
	if port == 0 || port > 65535 {
		return Target{}, malformed(host, port, "ports are 1 to 65535")
	}
	name, addr, problem := parseHost(host)
	if problem != "" {
		return Target{}, malformed(host, port, problem)
	}
	return Target{host: name, addr: addr, port: uint16(port)}, nil
}

// Host returns the normalized name, or the address as text.
func (t Target) Host() string {
	if t.IsAddr() {
		return t.addr.String()
	}
	return t.host
}

// IsAddr reports whether the program asked for an address instead of a name.
func (t Target) IsAddr() bool { return t.addr.IsValid() }

// String returns host and port, with IPv6 addresses in brackets.
func (t Target) String() string {
	return net.JoinHostPort(t.Host(), strconv.Itoa(int(t.port)))
}

// parseHost returns either a normalized name or an address, or else a problem.
func parseHost(host string) (name string, addr netip.Addr, problem string) {
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		if !ok || !strings.Contains(inner, ":") {
			return "", addr, "an address in brackets is an IPv6 address"
		}
		host = inner
	}
	if strings.Contains(host, ":") {
		addr, problem = parseIPv6(host)
		return "", addr, problem
	}
	name, problem = normalizeName(host)
	if problem != "" {
		return "", addr, problem
	}
	if !endsInNumber(name) {
		return name, addr, ""
	}
	addr, ok := parseIPv4(name)
	if !ok {
		return "", addr, "a name that ends in a number is an IPv4 address, and this is none"
	}
	return "", addr, ""
}

// parseIPv6 refuses zones: they select an interface of the server's machine.
func parseIPv6(host string) (addr netip.Addr, problem string) {
	addr, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return netip.Addr{}, "it is not an IPv6 address"
	case addr.Zone() != "":
		return netip.Addr{}, "an address has no zone here"
	}
	return addr.Unmap(), ""
}

// normalizeName returns the name in lower case and punycode, without a trailing
// dot. ASCII names may have underscores and hyphens anywhere, which the IDNA
// profile would refuse and which real names have.
func normalizeName(host string) (name, problem string) {
	const notAName = "it is not a host name"
	name = host
	if len(host) > 4*maxName {
		return "", "a host name has at most 253 bytes"
	}
	if !plain(host) {
		var ok bool
		if name, ok = toASCII(host); !ok {
			return "", notAName
		}
	}
	name = strings.TrimSuffix(name, ".")
	if len(name) > maxName {
		return "", "a host name has at most 253 bytes"
	}
	name = strings.ToLower(name)
	for rest, more := name, true; more; {
		var label string
		label, rest, more = strings.Cut(rest, ".")
		if label == "" || len(label) > maxLabel || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return "", notAName
		}
	}
	return name, ""
}

// toASCII refuses names that another conversion would change again.
func toASCII(host string) (string, bool) {
	if !utf8.ValidString(host) {
		return "", false
	}
	name, err := idna.Lookup.ToASCII(host)
	if err != nil {
		return "", false
	}
	again, err := idna.Lookup.ToASCII(name)
	return name, err == nil && again == name
}

// plain reports whether the name is ASCII without punycode.
func plain(host string) bool {
	for i := range len(host) {
		if host[i] >= 0x80 {
			return false
		}
		if i+4 <= len(host) && (i == 0 || host[i-1] == '.') && strings.EqualFold(host[i:i+4], "xn--") {
			return false
		}
	}
	return true
}
