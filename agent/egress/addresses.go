package egress

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

const (
	// separateBits is the size, in bits, of a range whose addresses have a listener
	// each. For larger ones the agent listens at all addresses of the sandbox, and then
	// no program can listen at the same port.
	separateBits = 4
	// maxAddressListeners bounds the listeners of ranges.
	maxAddressListeners = 1024
)

// addresses listens at addresses that the rules allow without a name. Local routes lead
// them to the agent, which takes what a program asked for from its end of the
// connection.
type addresses struct {
	service *Service

	mu     sync.Mutex
	ranges []addressRange
	open   map[netip.AddrPort]io.Closer
	conns  map[*net.TCPConn]netip.AddrPort // of programs
}

type addressRange struct {
	prefix netip.Prefix
	ports  []uint16
}

func newAddresses(s *Service) *addresses {
	return &addresses{service: s, open: make(map[netip.AddrPort]io.Closer), conns: make(map[*net.TCPConn]netip.AddrPort)}
}

// rangesOf returns the ranges of a server's message, without malformed ones.
func rangesOf(m *agentv1.EgressAddresses) []addressRange {
	var all []addressRange
	for _, one := range m.GetRanges() {
		prefix, err := netip.ParsePrefix(one.GetCidr())
		if err != nil {
			continue
		}
		r := addressRange{prefix: prefix}
		for _, port := range one.GetPorts() {
			if port > 0 && port <= 65535 {
				r.ports = append(r.ports, uint16(port))
			}
		}
		all = append(all, r)
	}
	return all
}

// set replaces the ranges. It resets connections to addresses that are not among them
// any more: when it returns, their routes may go.
func (a *addresses) set(ranges []addressRange) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ranges = ranges
	wanted := listenersOf(ranges)
	for at, l := range a.open {
		if wanted[at] {
			continue
		}
		a.service.open.remove(l)
		delete(a.open, at)
		if at.Addr() == netip.IPv4Unspecified() {
			a.service.names.uncover(at.Port())
		}
	}
	for conn, at := range a.conns {
		if !a.has(at) {
			reset(conn)
		}
	}
	for at := range wanted {
		if a.open[at] != nil {
			continue
		}
		l, err := a.listen(at)
		if err != nil {
			a.service.cfg.Log.Warn("addresses have no listener in the sandbox", "at", at, "error", err)
			continue
		}
		a.open[at] = l
	}
}

// listenersOf returns where to listen for the ranges.
func listenersOf(ranges []addressRange) map[netip.AddrPort]bool {
	wanted := make(map[netip.AddrPort]bool)
	each := func(separate bool, do func(prefix netip.Prefix, port uint16)) {
		for _, r := range ranges {
			if (r.prefix.Addr().BitLen()-r.prefix.Bits() <= separateBits) != separate {
				continue
			}
			for _, port := range r.ports {
				do(r.prefix, port)
			}
		}
	}
	each(false, func(prefix netip.Prefix, port uint16) {
		if at := everywhere(prefix.Addr(), port); len(wanted) < maxAddressListeners {
			wanted[at] = true
		}
	})
	each(true, func(prefix netip.Prefix, port uint16) {
		if wanted[everywhere(prefix.Addr(), port)] {
			return
		}
		for addr := prefix.Addr(); prefix.Contains(addr) && len(wanted) < maxAddressListeners; addr = addr.Next() {
			wanted[netip.AddrPortFrom(addr, port)] = true
		}
	})
	return wanted
}

func everywhere(addr netip.Addr, port uint16) netip.AddrPort {
	if addr.Is4() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), port)
}

func (a *addresses) listen(at netip.AddrPort) (io.Closer, error) {
	network := "tcp4"
	if at.Addr().Is6() {
		network = "tcp6"
	}
	listen := func() (io.Closer, error) {
		return a.service.listenWith(&net.ListenConfig{Control: freebind}, network, at.String(), a.serve)
	}
	if at.Addr() == netip.IPv4Unspecified() {
		return a.service.names.cover(at.Port(), listen)
	}
	return listen()
}

// freebind lets a socket be bound to an address of IPv6 that has a local route only.
func freebind(network, _ string, raw syscall.RawConn) error {
	if network != "tcp6" {
		return nil
	}
	var set error
	err := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1) })
	if err != nil {
		return err
	}
	return set
}

// serve carries a connection to the address that its program asked for.
func (a *addresses) serve(conn *net.TCPConn) {
	at := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	if !a.add(conn, at) {
		if !a.service.names.serveAt(at.Addr(), conn, at.Port()) {
			reset(conn) // to the sandbox's own address, or by an earlier rule
		}
		return
	}
	defer a.remove(conn)
	remote, err := a.service.dial(a.service.ctx, at.Addr().String(), at.Port())
	if err != nil {
		reset(conn)
		return
	}
	a.service.relay(conn, conn, remote)
}

// add registers a program's connection. It reports false if the ranges do not have its
// address.
func (a *addresses) add(conn *net.TCPConn, at netip.AddrPort) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.has(at) {
		return false
	}
	a.conns[conn] = at
	return true
}

func (a *addresses) remove(conn *net.TCPConn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.conns, conn)
}

// has reports whether a range has the address and the port. The caller holds mu.
func (a *addresses) has(at netip.AddrPort) bool {
	if at.Addr().IsLoopback() || a.service.names.has(at.Addr()) {
		return false
	}
	return slices.ContainsFunc(a.ranges, func(r addressRange) bool {
		return r.prefix.Contains(at.Addr()) && slices.Contains(r.ports, at.Port())
	})
}
