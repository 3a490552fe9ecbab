package egress

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// ownFor is how long the machine's addresses are remembered.
const ownFor = 10 * time.Second

// ownAddrs holds the addresses of this machine's interfaces. A service that
// listens on all of them may be closed to the internet by a firewall, which does
// not stand between the server and itself.
type ownAddrs struct {
	mu    sync.Mutex
	addrs map[netip.Addr]bool
	read  time.Time
}

// has reports whether addr is one of the machine's. If the machine cannot list
// its addresses, the last list counts.
func (o *ownAddrs) has(addr netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.read) > ownFor {
		if listed, err := net.InterfaceAddrs(); err == nil {
			o.addrs = make(map[netip.Addr]bool, len(listed))
			for _, one := range listed {
				if prefix, err := netip.ParsePrefix(one.String()); err == nil {
					o.addrs[prefix.Addr().Unmap().WithZone("")] = true
				}
			}
			o.read = time.Now()
		}
	}
	return o.addrs[addr]
}
