package main

import (
	"errors"
	"net/netip"

	"github.com/sandgate/sandgate/localroute"
)

// route makes the addresses of names and these prefixes, and no others, local in this
// network namespace. A provider runs it beside a sandbox, as root of the namespace.
func route(args []string) error {
	prefixes := []netip.Prefix{localroute.Names}
	for _, arg := range args {
		prefix, err := netip.ParsePrefix(arg)
		if err != nil {
			return errors.Join(errUsage, err)
		}
		prefixes = append(prefixes, prefix.Masked())
	}
	return localroute.Set(nil, prefixes)
}
