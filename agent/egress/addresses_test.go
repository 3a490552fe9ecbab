package egress

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// covering is a sandbox with names at a port, which a range of the rules has, too.
type covering struct {
	*Service
	port uint16
}

func startCovering(t *testing.T, hosts ...string) *covering {
	t.Helper()
	s, client := start(t, time.Second)
	_, text, _ := net.SplitHostPort(freeAddress(t))
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{client: client, dials: map[string]string{}}
	for _, host := range hosts {
		u.dials[net.JoinHostPort(host, text)] = echo(t)
	}
	u.attach(t)
	return &covering{Service: s, port: uint16(port)}
}

// name looks a name up and returns its address with the port.
func (c *covering) name(t *testing.T, host string) string {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(c.resolve(query(t, host+".", dnsmessage.TypeA))); err != nil || len(m.Answers) != 1 {
		t.Fatal(m, err)
	}
	return c.at(netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A))
}

func (c *covering) at(addr netip.Addr) string { return netip.AddrPortFrom(addr, c.port).String() }

// allow sets the ranges, all with the port.
func (c *covering) allow(prefixes ...string) {
	var ranges []addressRange
	for _, prefix := range prefixes {
		ranges = append(ranges, addressRange{prefix: netip.MustParsePrefix(prefix), ports: []uint16{c.port}})
	}
	c.addresses.set(ranges)
}

// expect sends a byte to an address, and expects this end of the connection.
func (c *covering) expect(t *testing.T, what, at string, want error) {
	t.Helper()
	conn, err := net.Dial("tcp4", at)
	if err == nil {
		defer func() { _ = conn.Close() }()
		err = echoes(conn)
	}
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// echoes sends a byte, ends its direction and reads the echo.
func echoes(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write([]byte("x")); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(conn)
	if err == nil && string(got) != "echo x" {
		err = errors.New("another answer: " + string(got))
	}
	return err
}

// A listener at all addresses takes a port over from those of names, and gives it back:
// names work all the time, and open connections go on.
func TestRangeAndNamesShareAPort(t *testing.T) {
	c := startCovering(t, "one.example", "two.example")
	loopback := c.at(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	one := c.name(t, "one.example")
	open, err := net.Dial("tcp4", one)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	c.expect(t, "a name", one, nil)
	c.expect(t, "loopback", loopback, syscall.ECONNREFUSED)

	c.allow("203.0.113.0/24")
	c.expect(t, "a name, covered", one, nil)
	c.expect(t, "a name that was asked for later", c.name(t, "two.example"), nil)
	c.expect(t, "loopback, covered", loopback, syscall.ECONNRESET)
	c.expect(t, "an address that no name has", c.at(netip.AddrFrom4([4]byte{127, 80, 9, 9})), syscall.ECONNRESET)

	c.allow("203.0.113.0/24", "198.51.100.0/24") // one listener is enough
	c.expect(t, "a name, still covered", one, nil)

	c.allow()
	c.expect(t, "a name, uncovered", one, nil)
	c.expect(t, "a name, uncovered", c.name(t, "two.example"), nil)
	c.expect(t, "loopback, uncovered", loopback, syscall.ECONNREFUSED)
	if err := echoes(open); err != nil {
		t.Errorf("the connection from before: %v", err)
	}
}

// A program that has the port at all addresses keeps it, and the names do as well.
func TestProgramKeepsThePortOfARange(t *testing.T) {
	c := startCovering(t, "one.example")
	one := c.name(t, "one.example")
	program, err := net.Listen("tcp4", c.at(netip.AddrFrom4([4]byte{127, 0, 0, 1})))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Close() }()
	c.allow("203.0.113.0/24")
	c.expect(t, "a name", one, nil)
	go func() {
		if conn, err := program.Accept(); err == nil {
			_, _ = io.Copy(io.Discard, conn)
			_, _ = io.WriteString(conn, "echo x")
			_ = conn.Close()
		}
	}()
	c.expect(t, "the program", program.Addr().String(), nil)
}

// Malformed ranges are left out, and no message makes the agent open more than so many
// listeners.
func TestRangesAreBounded(t *testing.T) {
	ranges := rangesOf(&agentv1.EgressAddresses{Ranges: []*agentv1.EgressAddressRange{
		{Cidr: "203.0.113.8/29", Ports: []uint32{0, 80, 65536}}, {Cidr: "203.0.113.8"}, {Cidr: "x/8", Ports: []uint32{80}},
		{Cidr: "2001:db8::/64", Ports: []uint32{443}},
	}})
	wanted := listenersOf(ranges)
	if len(wanted) != 9 || !wanted[netip.MustParseAddrPort("203.0.113.15:80")] || !wanted[netip.MustParseAddrPort("[::]:443")] {
		t.Errorf("%d listeners: %v", len(wanted), wanted)
	}
	var many []addressRange
	for i := range 256 {
		many = append(many, addressRange{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 28), []uint16{80, 443, 5432}})
	}
	if n := len(listenersOf(many)); n != maxAddressListeners {
		t.Errorf("%d listeners", n)
	}
}
