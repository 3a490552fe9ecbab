package egress

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

const (
	defaultTimeout    = 30 * time.Second
	defaultFirstBytes = 30 * time.Second
	defaultIdle       = time.Hour
	// maxAddrs bounds the addresses of one name that are tried.
	maxAddrs = 16
	// nextAddr is when the next address is tried beside one that has not answered:
	// the delay that RFC 8305 recommends.
	nextAddr = 250 * time.Millisecond
)

// Resolver resolves host names; *net.Resolver is one.
type Resolver interface {
	// LookupNetIP returns the addresses of a name that ends in a dot. network is
	// "ip".
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Dialer connects to allowed targets. The zero value is ready to use, by any
// number of goroutines.
type Dialer struct {
	// Resolver resolves names. Nil: the machine's resolver.
	Resolver Resolver
	// Timeout bounds resolution and connection together. 0: 30 seconds.
	Timeout time.Duration
	// FirstBytes bounds the time in which a program sends its ClientHello or the
	// head of an HTTP request. 0: 30 seconds.
	FirstBytes time.Duration
	// Idle is how long a connection may carry no byte in either direction before
	// it is closed. 0: one hour.
	Idle time.Duration
	// Roots are the authorities that upstreams of intercepted connections are
	// verified with. Nil: the machine's.
	Roots *x509.CertPool

	own ownAddrs
}

// Open checks the target, resolves it, and connects. The error is a *Denied if
// the policy does not allow the target or any address of it; otherwise the
// target could not be reached. The caller must call Relay or Close.
//
// A name is resolved as it is, without the search domains of the machine.
func (d *Dialer) Open(ctx context.Context, policy *Policy, target Target) (*Conn, error) {
	upstream, err := d.dial(ctx, policy, target)
	if err != nil {
		return nil, err
	}
	return newConn(d, policy, target, upstream), nil
}

func (d *Dialer) dial(ctx context.Context, policy *Policy, target Target) (*net.TCPConn, error) {
	if err := policy.Check(target); err != nil {
		return nil, err
	}
	timeout := cmp.Or(d.Timeout, defaultTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no connection within %s", timeout))
	defer cancel()
	addrs, err := d.resolve(ctx, policy, target)
	if err != nil {
		return nil, err
	}
	race := race{
		dialer: net.Dialer{
			// The address is checked on the socket that is about to connect, whatever
			// the steps before have done.
			ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
				addr, err := netip.ParseAddrPort(address)
				if err != nil {
					return err
				}
				return d.checkAddr(policy, target, addr.Addr())
			},
		},
		port: target.port,
	}
	upstream, err := race.run(ctx, addrs)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", target, err)
	}
	return upstream, nil
}

// resolve returns the allowed addresses of the target, in the order in which to
// try them. If there are only others, the error is the *Denied of the first.
func (d *Dialer) resolve(ctx context.Context, policy *Policy, target Target) ([]netip.Addr, error) {
	found := []netip.Addr{target.addr}
	if !target.IsAddr() {
		var resolver Resolver = net.DefaultResolver
		if d.Resolver != nil {
			resolver = d.Resolver
		}
		var err error
		found, err = resolver.LookupNetIP(ctx, "ip", target.host+".")
		if err != nil {
			return nil, fmt.Errorf("resolve %s: %w", target.host, err)
		}
	}
	var allowed []netip.Addr
	var refused error
	for _, addr := range found[:min(len(found), maxAddrs)] {
		addr = addr.Unmap().WithZone("")
		if err := d.checkAddr(policy, target, addr); err != nil {
			refused = cmp.Or(refused, err)
			continue
		}
		allowed = append(allowed, addr)
	}
	switch {
	case len(allowed) > 0:
		return alternate(allowed), nil
	case refused != nil:
		return nil, refused
	}
	return nil, fmt.Errorf("resolve %s: the name has no address", target.host)
}

// checkAddr is Policy.CheckAddr, which knows nothing of this machine, and the
// check that the address is not one of this machine's own.
func (d *Dialer) checkAddr(policy *Policy, target Target, addr netip.Addr) error {
	if err := policy.CheckAddr(target, addr); err != nil {
		return err
	}
	if public(single(addr)) && d.own.has(addr) {
		return policy.checkExact(target, addr, "an address of the server's machine")
	}
	return nil
}

// alternate orders addresses so that the families take turns, beginning with
// the first's.
func alternate(addrs []netip.Addr) []netip.Addr {
	var first, second []netip.Addr
	for _, addr := range addrs {
		if addr.Is4() == addrs[0].Is4() {
			first = append(first, addr)
		} else {
			second = append(second, addr)
		}
	}
	ordered := make([]netip.Addr, 0, len(addrs))
	for i := range max(len(first), len(second)) {
		if i < len(first) {
			ordered = append(ordered, first[i])
		}
		if i < len(second) {
			ordered = append(ordered, second[i])
		}
	}
	return ordered
}
