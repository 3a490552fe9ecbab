package limit

import (
	"net"
	"testing"
)

// All addresses of an IPv6 /64, which a single machine can have, are one host: they
// displace one another, and nobody else's connection.
func TestAddressesOfOnePrefixAreOneHost(t *testing.T) {
	p := NewPending(100, 2)
	evicted := map[string]int{}
	var entries []*Entry
	add := func(address string) {
		from, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		e := new(Entry)
		entries = append(entries, e)
		p.Add(e, from, func() { evicted[address]++ })
	}
	for _, address := range []string{
		"[2001:db8:0:1::1]:1", "[2001:db8:0:1:ffff::2]:2",
		"[2001:db8:0:2::1]:3", "192.0.2.1:4", "[::ffff:192.0.2.1]:5", "192.0.2.2:6", "[fe80::1%1]:7", "[fe80::2]:8",
	} {
		add(address)
	}
	if len(evicted) != 0 {
		t.Fatalf("within the bound: %v", evicted)
	}
	add("[2001:db8:0:1:1:2:3:4]:9")
	add("[::ffff:192.0.2.1]:10")
	add("[fe80::3%2]:11")
	want := []string{"[2001:db8:0:1::1]:1", "192.0.2.1:4", "[fe80::1%1]:7"}
	for _, address := range want {
		if evicted[address] != 1 {
			t.Errorf("%s was not closed for another of its host", address)
		}
	}
	if len(evicted) != len(want) {
		t.Errorf("closed: %v", evicted)
	}
	for _, e := range entries {
		p.Remove(e)
	}
	if p.Len() != 0 || len(p.hosts) != 0 {
		t.Errorf("left: %d, %v", p.Len(), p.hosts)
	}
}
