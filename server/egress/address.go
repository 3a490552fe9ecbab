package egress

import "net/netip"

// blocks holds every address that is not public: the special-purpose registries
// of IANA, addresses that embed IPv4 ones, and services of clouds that hand out
// credentials. The most specific block counts. Addresses that embed an IPv4
// address are never taken for public, whatever they embed: which IPv4 address is
// reached is up to the network.
var blocks = newBlocks(map[string]string{
	"0.0.0.0/8":          "an unspecified address",
	"10.0.0.0/8":         "a private address",
	"100.64.0.0/10":      "a carrier-grade NAT address",
	"100.100.100.200/32": "a metadata service",
	"127.0.0.0/8":        "a loopback address",
	"168.63.129.16/32":   "a metadata service",
	"169.254.0.0/16":     "a link-local address",
	"169.254.169.254/32": "a metadata service",
	"169.254.170.2/32":   "a metadata service",
	"169.254.170.23/32":  "a metadata service",
	"172.16.0.0/12":      "a private address",
	"192.0.0.0/24":       "a reserved address",
	"192.0.0.192/32":     "a metadata service",
	"192.0.2.0/24":       "a documentation address",
	"192.88.99.0/24":     "a reserved address",
	"192.168.0.0/16":     "a private address",
	"198.18.0.0/15":      "a benchmarking address",
	"198.51.100.0/24":    "a documentation address",
	"203.0.113.0/24":     "a documentation address",
	"224.0.0.0/4":        "a multicast address",
	"240.0.0.0/4":        "a reserved address",
	"255.255.255.255/32": "the broadcast address",

	// Only 2000::/3 is global unicast.
	"::/3":              "a reserved address",
	"::/96":             "an IPv4-compatible address",
	"::/128":            "an unspecified address",
	"::1/128":           "a loopback address",
	"64:ff9b::/96":      "a NAT64 address",
	"64:ff9b:1::/48":    "a NAT64 address",
	"2001::/23":         "a reserved address",
	"2001::/32":         "a Teredo address",
	"2001:db8::/32":     "a documentation address",
	"2002::/16":         "a 6to4 address",
	"3fff::/20":         "a documentation address",
	"4000::/2":          "a reserved address",
	"8000::/1":          "a reserved address",
	"fc00::/7":          "a private address",
	"fd00:ec2::23/128":  "a metadata service",
	"fd00:ec2::254/128": "a metadata service",
	"fd20:ce::254/128":  "a metadata service",
	"fe80::/10":         "a link-local address",
	"fec0::/10":         "a site-local address",
	"ff00::/8":          "a multicast address",
})

func newBlocks(kinds map[string]string) *prefixes[string] {
	blocks := &prefixes[string]{}
	for prefix, kind := range kinds {
		blocks.put(netip.MustParsePrefix(prefix), kind)
	}
	return blocks
}

// blockOf returns the most specific block that contains all of the prefix, and
// its kind. It returns false if the prefix has public addresses.
func blockOf(prefix netip.Prefix) (block netip.Prefix, kind string, found bool) {
	for block, kind := range blocks.around(prefix) {
		return block, kind, true
	}
	return netip.Prefix{}, "", false
}

// public reports whether the prefix has public addresses.
func public(prefix netip.Prefix) bool {
	_, _, found := blockOf(prefix)
	return !found
}

// within reports whether all addresses of inner are in outer.
func within(inner, outer netip.Prefix) bool {
	return inner.Bits() >= outer.Bits() && outer.Contains(inner.Addr())
}

// single returns the prefix of one address.
func single(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }
