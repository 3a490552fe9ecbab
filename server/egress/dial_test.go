package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// names is a Resolver.
type names map[string][]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	name, absolute := strings.CutSuffix(host, ".")
	if !absolute {
		return nil, errors.New("not an absolute name: " + host)
	}
	var addrs []netip.Addr
	for _, text := range n[name] {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	if len(addrs) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	return addrs, nil
}

// listen returns the port of a listener that counts connections.
func listen(t testing.TB, address string) (port uint32, accepted *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	accepted = new(atomic.Int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return uint32(listener.Addr().(*net.TCPAddr).Port), accepted
}

func TestOpenRefusesAddresses(t *testing.T) {
	port, accepted := listen(t, "0.0.0.0:0")
	everything := compile(t, template(at(hosts("*"), port), at(cidrs("0.0.0.0/0", "::/0"), port)))
	for addr, kind := range map[string]string{
		"127.0.0.1": "loopback", "127.80.0.5": "loopback", "127.255.255.255": "loopback",
		"0.0.0.0": "unspecified", "0.1.2.3": "unspecified", "10.0.0.1": "private", "172.16.0.1": "private", "172.31.255.255": "private",
		"192.168.1.1": "private", "100.64.0.1": "carrier-grade", "100.127.255.255": "carrier-grade", "169.254.0.1": "link-local",
		"169.254.169.254": "metadata", "169.254.170.2": "metadata", "100.100.100.200": "metadata", "168.63.129.16": "metadata",
		"192.0.0.192": "metadata", "192.0.0.8": "reserved", "192.0.2.1": "documentation", "198.51.100.1": "documentation",
		"203.0.113.1": "documentation", "198.18.0.1": "benchmarking", "198.19.255.255": "benchmarking", "192.88.99.1": "reserved",
		"224.0.0.1": "multicast", "239.255.255.255": "multicast", "240.0.0.1": "reserved", "255.255.255.255": "broadcast",
		"::": "unspecified", "::1": "loopback", "::7f00:1": "IPv4-compatible", "::ffff:127.0.0.1": "loopback", "::ffff:169.254.169.254": "metadata",
		"::ffff:0:127.0.0.1": "reserved", "64:ff9b::7f00:1": "NAT64", "64:ff9b::8.8.8.8": "NAT64", "64:ff9b:1::a00:1": "NAT64",
		"2001::1": "Teredo", "2001:0:7f00:1::": "Teredo", "2001:db8::1": "documentation", "2001:10::1": "reserved", "2002:7f00:1::1": "6to4", "2002:a00:1::": "6to4",
		"3fff::1": "documentation", "5f00::1": "reserved", "100::1": "reserved", "fc00::1": "private", "fd00:ec2::254": "metadata", "fd20:ce::254": "metadata",
		"fe80::1": "link-local", "fec0::1": "site-local", "ff02::1": "multicast", "4000::1": "reserved",
	} {
		d := &Dialer{Resolver: names{"a.example": {addr}}}
		_, err := d.Open(t.Context(), everything, parse(t, "a.example", port))
		var denied *Denied
		if !errors.As(err, &denied) || denied.Reason != ReasonAddress || !strings.Contains(err.Error(), kind) {
			t.Errorf("%s: got %v, want it refused as %s", addr, err, kind)
		}
		if _, err := d.Open(t.Context(), everything, parse(t, addr, port)); !errors.As(err, &denied) {
			t.Errorf("%s asked for as an address: got %v", addr, err)
		}
	}
	if accepted.Load() != 0 {
		t.Errorf("%d connections were made", accepted.Load())
	}
	for _, addr := range []string{"1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.0.3.1", "223.255.255.255", "2600::1", "2001:200::1", "2a00::1"} {
		if !public(single(netip.MustParseAddr(addr))) {
			t.Errorf("%s is not public", addr)
		}
	}
}

func TestOpenRefusesTheMachinesOwnAddresses(t *testing.T) {
	own := netip.MustParseAddr("93.184.216.34")
	d := &Dialer{Resolver: names{"a.example": {own.String()}}}
	d.own.addrs, d.own.read = map[netip.Addr]bool{own: true}, time.Now()
	port := uint32(7777)
	for _, target := range []Target{parse(t, "a.example", port), parse(t, own.String(), port)} {
		wide := compile(t, template(at(hosts("*"), port), at(cidrs("93.0.0.0/8"), port)))
		_, err := d.Open(t.Context(), wide, target)
		var denied *Denied
		if !errors.As(err, &denied) || denied.Reason != ReasonAddress || !strings.Contains(err.Error(), "server's machine") {
			t.Errorf("%v: got %v", target, err)
		}
		exact := compile(t, template(at(hosts("*"), port), at(cidrs("93.184.216.34"), port)))
		if err := d.checkAddr(exact, target, own); err != nil {
			t.Errorf("%v by its own rule: %v", target, err)
		}
	}
}

// rebinding answers with a public address first, and then with another.
type rebinding struct {
	asked atomic.Int64
	then  netip.Addr
}

func (r *rebinding) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	if r.asked.Add(1) == 1 {
		return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
	}
	return []netip.Addr{r.then}, nil
}

func TestOpenResolvesOnceAndConnectsToThat(t *testing.T) {
	port, accepted := listen(t, "127.0.0.1:0")
	resolver := &rebinding{then: netip.MustParseAddr("127.0.0.1")}
	d := &Dialer{Resolver: resolver, Timeout: 200 * time.Millisecond}
	policy := compile(t, template(at(hosts("a.example"), port)))
	// The public address is not there, or does not answer.
	if conn, err := d.Open(t.Context(), policy, parse(t, "a.example", port)); err == nil {
		_ = conn.Close()
	}
	if resolver.asked.Load() != 1 {
		t.Errorf("resolved %d times", resolver.asked.Load())
	}
	_, err := d.Open(t.Context(), policy, parse(t, "a.example", port))
	var denied *Denied
	if !errors.As(err, &denied) || !strings.Contains(denied.Error(), resolver.then.String()) {
		t.Errorf("after the rebinding: %v", err)
	}
	if accepted.Load() != 0 {
		t.Error("the private address was connected")
	}
}

func TestOpen(t *testing.T) {
	port, _ := listen(t, "127.0.0.1:0")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := uint32(free.Addr().(*net.TCPAddr).Port)
	_ = free.Close()
	resolver := names{
		"a.example": {"127.0.0.1"}, "mixed.example": {"10.0.0.1", "127.0.0.1"}, "mapped.example": {"::ffff:127.0.0.1"},
		"second.example": {"127.0.0.99", "127.0.0.1"}, "both.example": {"::1", "127.0.0.1"},
	}
	policy := compile(t, template(at(hosts("*"), port, closed), at(cidrs("127.0.0.0/8", "::1/128"), port, closed)))
	for _, c := range []struct {
		host string
		port uint32
		want string // a part of the error; empty: connected
	}{
		{"a.example", port, ""},
		{"mixed.example", port, ""},
		{"mapped.example", port, ""},
		{"second.example", port, ""},
		{"both.example", port, ""},
		{"127.0.0.1", port, ""},
		{"0x7f.1", port, ""},
		{"a.example", closed, "connection refused"},
		{"none.example", port, "no such host"},
	} {
		conn, err := (&Dialer{Resolver: resolver}).Open(t.Context(), policy, parse(t, c.host, c.port))
		var denied *Denied
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.host, err)
		case c.want == "":
			if conn.Addr().Addr() != netip.MustParseAddr("127.0.0.1") || conn.target.port != uint16(c.port) {
				t.Errorf("%s: connected to %v for %v", c.host, conn.Addr(), conn.target)
			}
			_ = conn.Close()
		case err == nil || errors.As(err, &denied) || !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: got %v, want %s", c.host, err, c.want)
		}
	}
}

func TestApply(t *testing.T) {
	port, _ := listen(t, "127.0.0.1:0")
	d := &Dialer{Resolver: names{"a.example": {"127.0.0.1"}}}
	loopback := at(cidrs("127.0.0.0/8"), port)
	conn, err := d.Open(t.Context(), compile(t, template(at(hosts("a.example"), port), loopback)), parse(t, "a.example", port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Apply(compile(t, template(at(hosts("*.example"), port), loopback))); err != nil {
		t.Error(err)
	}
	for _, policy := range []*Policy{nil, compile(t, template(at(hosts("b.example"), port), loopback)), compile(t, template(at(hosts("a.example"), port)))} {
		var denied *Denied
		if err := conn.Apply(policy); !errors.As(err, &denied) {
			t.Errorf("got %v", err)
		}
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the program went away")
	cancel(why)
	policy := compile(t, template(at(cidrs("127.0.0.0/8"), 9)))
	if _, err := (&Dialer{}).Open(ctx, policy, parse(t, "127.0.0.1", 9)); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}
