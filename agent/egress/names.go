package egress

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of the addresses of names.
const (
	// maxNames bounds the names that have an address, and maxListeners their ports.
	// Each port has a descriptor and a stack.
	maxNames     = 1024
	maxListeners = 4096
	// nameIdle is how long a name must be unused before another may take its place.
	nameIdle = 10 * time.Minute
)

var errTooManyNames = errors.New("too many names are in use")

// names gives each allowed name an address of its own and listens there. The address is
// from 198.18.0.0/16, if the sandbox has a local route for it, and otherwise from
// 127.80.0.0/16: some programs refuse loopback addresses as answers.
type names struct {
	service *Service

	mu        sync.Mutex
	byHost    map[string]*name
	byAddr    map[netip.Addr]*name
	next      uint16                    // the last two bytes of the next address
	others    map[netip.AddrPort]uint16 // ports at which the agent may not listen, and where it does instead
	listeners int
	covered   map[uint16]bool // ports at which addresses listens for names, too
	now       func() time.Time
}

type name struct {
	host  string
	addr  netip.Addr
	ports map[uint16]io.Closer // listeners; nil: covered
	conns int
	last  time.Time // of use
}

func newNames(s *Service) *names {
	return &names{
		service: s, byHost: make(map[string]*name), byAddr: make(map[netip.Addr]*name),
		others: make(map[netip.AddrPort]uint16), covered: make(map[uint16]bool), next: 1, now: time.Now,
	}
}

// listen returns the name's address, and listens there at the ports at which it
// does not listen yet. A port that another program holds is left to it.
func (n *names) listen(host string, ports []uint32) (netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.byHost[host]
	if e == nil {
		if len(n.byHost) >= maxNames && !n.evict() {
			return netip.Addr{}, errTooManyNames
		}
		e = &name{host: host, addr: n.address(), ports: make(map[uint16]io.Closer)}
		n.byHost[host], n.byAddr[e.addr] = e, e
	}
	e.last = n.now()
	for _, p := range ports {
		port := uint16(p)
		if _, ok := e.ports[port]; ok || port == 0 || p > 65535 {
			continue
		}
		if n.listeners >= maxListeners && !n.evict() {
			return netip.Addr{}, errTooManyNames
		}
		n.listenAt(e, port)
	}
	return e.addr, nil
}

// listenAt listens at one port of a name. The caller holds mu.
func (n *names) listenAt(e *name, port uint16) {
	if n.covered[port] {
		e.ports[port] = nil
		return
	}
	at, serve := netip.AddrPortFrom(e.addr, port), func(conn *net.TCPConn) { n.serve(e, conn, port) }
	l, err := n.service.listen(at.String(), serve)
	if errors.Is(err, unix.EACCES) && n.service.redirecting.Load() {
		if l, err = n.service.listen(netip.AddrPortFrom(e.addr, 0).String(), serve); err == nil {
			n.others[at] = l.Addr().(*net.TCPAddr).AddrPort().Port()
		}
	}
	if err != nil {
		n.service.cfg.Log.Warn("a destination has no listener in the sandbox", "port", port, "error", err)
		return
	}
	e.ports[port] = l
	n.listeners++
}

// close closes the listener at one port of a name. The caller holds mu.
func (n *names) close(e *name, port uint16) {
	if l := e.ports[port]; l != nil {
		n.service.open.remove(l)
		delete(n.others, netip.AddrPortFrom(e.addr, port))
		n.listeners--
	}
	delete(e.ports, port)
}

// cover has listen open a listener for all addresses at a port, which the names'
// listeners there would prevent, and which serves names by serveAt.
func (n *names) cover(port uint16, listen func() (io.Closer, error)) (io.Closer, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var at []*name
	for _, e := range n.byHost {
		if _, ok := e.ports[port]; ok {
			n.close(e, port)
			at = append(at, e)
		}
	}
	l, err := listen()
	n.covered[port] = err == nil
	for _, e := range at {
		n.listenAt(e, port)
	}
	return l, err
}

// uncover has the names listen themselves at a port again, after the listener of cover
// was closed.
func (n *names) uncover(port uint16) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.covered, port)
	for _, e := range n.byHost {
		if _, ok := e.ports[port]; ok {
			delete(e.ports, port)
			n.listenAt(e, port)
		}
	}
}

// has reports whether the address is a name's.
func (n *names) has(addr netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byAddr[addr] != nil
}

// serveAt serves a connection to a covered port. It reports false if the address is no
// name's.
func (n *names) serveAt(addr netip.Addr, conn *net.TCPConn, port uint16) bool {
	n.mu.Lock()
	e := n.byAddr[addr]
	listens := false
	if e != nil {
		_, listens = e.ports[port]
	}
	n.mu.Unlock()
	if listens {
		n.serve(e, conn, port)
	}
	return listens
}

// otherPort returns where the agent listens instead of a port, 0 if nowhere else.
func (n *names) otherPort(at netip.AddrPort) uint16 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.others[at]
}

// address returns an address that no name has. The caller holds mu.
func (n *names) address() netip.Addr {
	block := [2]byte{127, 80}
	if n.service.routed() {
		block = [2]byte{198, 18}
	}
	for {
		a := netip.AddrFrom4([4]byte{block[0], block[1], byte(n.next >> 8), byte(n.next)})
		n.next++
		if low := byte(n.next); low == 0 || low == 255 { // which some programs take for a network's
			n.next++
		}
		if n.byAddr[a] == nil {
			return a
		}
	}
}

// routed reports whether the sandbox has a local route for the addresses of names:
// only then can one be bound. The route may come after the agent has started.
func (s *Service) routed() bool {
	probe, err := (&net.ListenConfig{}).ListenPacket(s.ctx, "udp4", "198.18.0.1:0")
	if err != nil {
		return false
	}
	_ = probe.Close()
	return true
}

// evict removes the name that was unused for the longest time, if that is long. The
// caller holds mu.
func (n *names) evict() bool {
	var oldest *name
	for _, e := range n.byHost {
		if e.conns == 0 && (oldest == nil || e.last.Before(oldest.last)) {
			oldest = e
		}
	}
	if oldest == nil || n.now().Sub(oldest.last) < nameIdle {
		return false
	}
	for port := range oldest.ports {
		n.close(oldest, port)
	}
	delete(n.byHost, oldest.host)
	delete(n.byAddr, oldest.addr)
	return true
}

// serve carries a connection to a name's address.
func (n *names) serve(e *name, conn *net.TCPConn, port uint16) {
	n.use(e, 1)
	defer n.use(e, -1)
	remote, err := n.service.dial(n.service.ctx, e.host, port)
	if err != nil {
		reset(conn)
		return
	}
	n.service.relay(conn, conn, remote)
}

func (n *names) use(e *name, change int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e.conns += change
	e.last = n.now()
}
