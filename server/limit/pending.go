package limit

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// hostBits is the length of an IPv6 prefix that counts as one host.
const hostBits = 64

// Pending bounds connections whose callers have not authenticated yet: all of them, and
// those of one host. Beyond a bound the oldest is closed, not the newest: a client with
// credentials uses them at once, so it is not the oldest for long.
type Pending struct {
	most, mostOfHost int

	mu    sync.Mutex
	list  list.List // of *Entry, the oldest first
	hosts map[string]int
}

// NewPending returns a bound of most connections, and of mostOfHost of one host.
func NewPending(most, mostOfHost int) *Pending {
	return &Pending{most: most, mostOfHost: mostOfHost, hosts: make(map[string]int)}
}

// Entry is a connection's place in a Pending. The zero value is in none.
type Entry struct {
	host  string
	evict func()
	elem  *list.Element // nil: not pending; Pending.mu guards it
}

// Add adds a connection from an address. evict is called, once at most, if it has to
// make way for another.
func (p *Pending) Add(e *Entry, from net.Addr, evict func()) {
	e.host, e.evict = hostOf(from), evict
	p.mu.Lock()
	var oldest *Entry
	switch {
	case p.hosts[e.host] >= p.mostOfHost:
		oldest = p.oldest(e.host)
	case p.list.Len() >= p.most:
		oldest = p.list.Front().Value.(*Entry)
	}
	if oldest != nil {
		p.remove(oldest)
	}
	e.elem = p.list.PushBack(e)
	p.hosts[e.host]++
	p.mu.Unlock()
	if oldest != nil {
		oldest.evict()
	}
}

// Remove removes a connection, if it is still there: it has authenticated or ended.
func (p *Pending) Remove(e *Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(e)
}

// Len returns the number of connections.
func (p *Pending) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.list.Len()
}

func (p *Pending) oldest(host string) *Entry {
	for elem := p.list.Front(); elem != nil; elem = elem.Next() {
		if e := elem.Value.(*Entry); e.host == host {
			return e
		}
	}
	return nil
}

// remove removes a connection. The caller holds mu.
func (p *Pending) remove(e *Entry) {
	if e.elem == nil {
		return
	}
	p.list.Remove(e.elem)
	e.elem = nil
	if p.hosts[e.host]--; p.hosts[e.host] == 0 {
		delete(p.hosts, e.host)
	}
}

// hostOf returns what counts as one host: an IPv4 address, or the /64 prefix of an IPv6
// address, which is the least that a site gets, so that its addresses are no bound.
// Clients of a unix socket are one host.
func hostOf(a net.Addr) string {
	from, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return a.Network()
	}
	addr := from.Addr().Unmap()
	if addr.Is6() {
		// Without the zone, which a Prefix does not have.
		return netip.PrefixFrom(addr.WithZone(""), hostBits).Masked().String()
	}
	return addr.String()
}
