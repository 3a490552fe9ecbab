package egress

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
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
	next      uint16 // the last two bytes of the next address
	used      map[netip.Addr]bool
	listeners int
	now       func() time.Time
}

type name struct {
	host  string
	addr  netip.Addr
	ports map[uint16]io.Closer // listeners
	conns int
	last  time.Time // of use
}

func newNames(s *Service) *names {
	return &names{service: s, byHost: make(map[string]*name), used: make(map[netip.Addr]bool), next: 1, now: time.Now}
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
		n.byHost[host] = e
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
		l, err := n.service.listen(net.JoinHostPort(e.addr.String(), strconv.Itoa(int(port))),
			func(conn *net.TCPConn) { n.serve(e, conn, port) })
		if err != nil {
			n.service.cfg.Log.Warn("a destination has no listener in the sandbox", "port", port, "error", err)
			continue
		}
		e.ports[port] = l
		n.listeners++
	}
	return e.addr, nil
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
		if !n.used[a] {
			n.used[a] = true
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
	for _, l := range oldest.ports {
		n.service.open.remove(l)
		n.listeners--
	}
	delete(n.byHost, oldest.host)
	delete(n.used, oldest.addr)
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
