package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func query(t testing.TB, name string, kind dnsmessage.Type) []byte {
	t.Helper()
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7, RecursionDesired: true})
	if err := b.StartQuestions(); err != nil {
		t.Fatal(err)
	}
	if err := b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}); err != nil {
		t.Fatal(err)
	}
	out, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestNames(t *testing.T) {
	s, client := start(t, time.Second)
	address := echo(t)
	_, port, _ := net.SplitHostPort(freeAddress(t))
	u := &upstream{client: client, dials: map[string]string{"ok.example:" + port: address}}
	u.attach(t)
	const httpsRecord = dnsmessage.Type(65)
	for _, c := range []struct {
		name string
		kind dnsmessage.Type
		code dnsmessage.RCode
		addr string
	}{
		{"ok.example.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "127.80.0.1"},
		{"OK.eXample.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "127.80.0.1"},
		{"ok.example.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, ""},
		{"ok.example.", httpsRecord, dnsmessage.RCodeSuccess, ""},
		{"ok.example.", dnsmessage.TypeTXT, dnsmessage.RCodeSuccess, ""},
		{"no.example.", dnsmessage.TypeA, dnsmessage.RCodeNameError, ""},
		{"no.example.", dnsmessage.TypeTXT, dnsmessage.RCodeNameError, ""},
		{"localhost.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "127.0.0.1"},
		{"1.0.0.127.in-addr.arpa.", dnsmessage.TypePTR, dnsmessage.RCodeNameError, ""},
		{".", dnsmessage.TypeNS, dnsmessage.RCodeNameError, ""},
	} {
		var m dnsmessage.Message
		if err := m.Unpack(s.resolve(query(t, c.name, c.kind))); err != nil {
			t.Fatal(err)
		}
		got := ""
		if len(m.Answers) == 1 {
			got = netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A).String()
		}
		if m.ID != 7 || !m.Response || m.RCode != c.code || got != c.addr || m.Questions[0].Name.String() != c.name {
			t.Errorf("%s %v: %v %q", c.name, c.kind, m.RCode, got)
		}
	}
	// The name's address connects, by the port of its rule, and by the name.
	if got := exchange(t, net.JoinHostPort("127.80.0.1", port), "x"); got != "echo x" {
		t.Errorf("got %q", got)
	}
	if last := u.asked[len(u.asked)-1]; last != "ok.example:"+port {
		t.Errorf("announced %s", last)
	}
}

// A connection that the server refuses is reset.
func TestConnectionThatTheServerRefusesIsReset(t *testing.T) {
	s, client := start(t, time.Second)
	_, port, _ := net.SplitHostPort(freeAddress(t))
	u := &upstream{client: client, dials: map[string]string{"ok.example:" + port: "127.0.0.1:1"}}
	u.attach(t)
	s.resolve(query(t, "ok.example.", dnsmessage.TypeA))
	conn, err := net.Dial("tcp", net.JoinHostPort("127.80.0.1", port))
	if errors.Is(err, syscall.ECONNRESET) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if data, err := io.ReadAll(conn); err == nil || len(data) > 0 {
		t.Errorf("got %q, %v", data, err)
	}
}

// Go's resolver gets answers by UDP and TCP.
func TestGoResolverGetsAnswersByUDPAndTCP(t *testing.T) {
	s, client := start(t, time.Second)
	_, port, _ := net.SplitHostPort(freeAddress(t))
	(&upstream{client: client, dials: map[string]string{"ok.example:" + port: ""}}).attach(t)
	for _, network := range []string{"udp", "tcp"} {
		r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, s.cfg.NameServer)
		}}
		if addrs, err := r.LookupHost(t.Context(), "ok.example."); err != nil || len(addrs) != 1 || addrs[0] != "127.80.0.1" {
			t.Errorf("%s: %v %v", network, addrs, err)
		}
		var missing *net.DNSError
		if addrs, err := r.LookupHost(t.Context(), "no.example."); !errors.As(err, &missing) || !missing.IsNotFound {
			t.Errorf("%s: %v %v", network, addrs, err)
		}
	}
}

// The number of names is bounded, and only a name that was unused for long makes
// room for another.
func TestNamesAreBounded(t *testing.T) {
	s, _ := start(t, time.Second)
	now := time.Now()
	s.names.now = func() time.Time { return now }
	seen := map[netip.Addr]bool{}
	for i := range maxNames {
		addr, err := s.names.listen("host"+strconv.Itoa(i), nil)
		if err != nil || seen[addr] || !netip.MustParsePrefix("127.80.0.0/16").Contains(addr) {
			t.Fatal(i, addr, err)
		}
		seen[addr] = true
		now = now.Add(time.Millisecond)
	}
	if addr, err := s.names.listen("one-more", nil); err == nil {
		t.Errorf("got %v", addr)
	}
	now = now.Add(nameIdle)
	if _, err := s.names.listen("one-more", nil); err != nil {
		t.Error(err)
	}
	if _, ok := s.names.byHost["host0"]; ok || len(s.names.byHost) != maxNames {
		t.Errorf("%d names; the oldest: %v", len(s.names.byHost), ok)
	}
}

func FuzzResolve(f *testing.F) {
	f.Add(query(f, "localhost.", dnsmessage.TypeA))
	f.Add(query(f, "no.example.", dnsmessage.TypeAAAA))
	s, err := New(Config{AttachTime: time.Nanosecond})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, data []byte) {
		reply := s.resolve(data)
		if reply == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(reply); err != nil || !m.Response || len(m.Questions) != 1 {
			t.Errorf("%q: %v %v", data, m, err)
		}
	})
}
