package network

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/conformance/goprogram/build"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/server"
)

// ownAddrs returns addresses of this machine that a sandbox does not have itself.
func ownAddrs(t *testing.T) (v4, v6 netip.Addr) {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		prefix, err := netip.ParsePrefix(one.String())
		if err != nil || !prefix.Addr().IsGlobalUnicast() {
			continue
		}
		if addr := prefix.Addr(); addr.Is4() && !v4.IsValid() {
			v4 = addr
		} else if addr.Is6() && !v6.IsValid() {
			v6 = addr
		}
	}
	if !v4.IsValid() {
		t.Skip("needs an address that is not loopback")
	}
	return v4, v6
}

// literals is an upstream at addresses of this machine, and a server whose template
// allows them.
type literals struct {
	*testbed
	port   uint32
	v4, v6 netip.Addr
}

// serveLiterals starts the upstream. change makes the template allow it.
func serveLiterals(t *testing.T) (l literals, change func(*server.Config)) {
	t.Helper()
	l.v4, l.v6 = ownAddrs(t)
	listener, err := net.Listen("tcp", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: listener, Config: &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "content") })}}
	s.Start()
	t.Cleanup(s.Close)
	l.port = portOf(listener.Addr().String())
	return l, func(cfg *server.Config) {
		rule := &sandboxv1.EgressRule{Cidrs: []string{l.v4.String()}, Ports: []uint32{l.port}}
		if l.v6.IsValid() {
			rule.Cidrs = append(rule.Cidrs, l.v6.String())
		}
		cfg.Templates[0].Egress = append(cfg.Templates[0].Egress, rule)
	}
}

const noProxy = "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy\n"

func (l *literals) allow(cidrs ...string) *sandboxv1.EgressRule {
	return &sandboxv1.EgressRule{Hosts: []string{"example.com"}, Cidrs: cidrs, Ports: []uint32{l.port}}
}

func (l *literals) url(addr netip.Addr) string {
	return fmt.Sprintf("http://%s/", netip.AddrPortFrom(addr, uint16(l.port)))
}

// get is a script that fetches from a literal without a proxy.
func (l *literals) get(addr netip.Addr) string { return fetchDirectly(l.url(addr)) }

// fetchDirectly is a script that fetches without a proxy. It ends as curl does.
func fetchDirectly(url string) string {
	return noProxy + fmt.Sprintf(`python3 -c '
import sys, urllib.error, urllib.request
try: print(urllib.request.urlopen("%s", timeout=20).read().decode())
except ConnectionResetError: sys.exit(%d)
except urllib.error.URLError as e: sys.exit(%[2]d if isinstance(e.reason, ConnectionResetError) else %d)'`, url, curlReset, curlNoConnection)
}

func (l *literals) update(box *sandgate.Sandbox, rules ...*sandboxv1.EgressRule) {
	l.t.Helper()
	if _, err := l.client.Update(l.t.Context(), box.ID(), sandgate.UpdateRequest{Network: &sandgate.Network{Allow: rules}}); err != nil {
		l.t.Fatal(err)
	}
}

func (l *literals) expect(box *sandgate.Sandbox, what, script, want string, code int32) {
	l.t.Helper()
	got, exit := sh(l.t, box, script)
	if !strings.Contains(got, want) || exit != code {
		l.t.Errorf("%s: %q, exit code %d; want %q, %d", what, got, exit, want, code)
	}
}

// curl's exit codes.
const (
	curlNoConnection = 7
	curlReset        = 56
)

// hold is a script that opens a connection to a literal and writes to the file outcome
// how it ends.
func (l *literals) hold(addr netip.Addr) string {
	return fmt.Sprintf(`rm -f open outcome
python3 -c '
import socket
s = socket.create_connection(("%s", %d))
open("open", "w").close()
try: s.recv(1); print("end")
except ConnectionResetError: print("reset")' >outcome 2>&1 &
while [ ! -e open ] && [ ! -s outcome ]; do sleep 0.05; done`, addr, l.port)
}

const outcome = "i=0; while [ ! -s outcome ] && [ $i -lt 400 ]; do sleep 0.05; i=$((i+1)); done; cat outcome"

// TestLiteralsOnRunc: programs without a proxy reach the addresses of CIDR rules, and
// no others, with rules that change on the live sandbox.
func TestLiteralsOnRunc(t *testing.T) {
	l, change := serveLiterals(t)
	l.testbed = startChanged(t, "runc", local.ProfileDefault, change, l.port)
	l.expectDescription(false)
	l.reach(t)
	l.changeRules(t)
	l.expect(l.create(l.allow(l.v4.String())), "curl", noProxy+"curl -sS -m 20 "+l.url(l.v4), "content", 0)
}

// expectDescription expects what the server tells about addresses without a name.
func (l *literals) expectDescription(needProxy bool) {
	l.t.Helper()
	info, err := l.client.ServerInfo(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	for _, e := range info.GetEnforcement() {
		if e.GetName() == "network" && strings.Contains(e.GetDetail(), providers.AddressesNeedProxy) != needProxy {
			l.t.Errorf("the server describes the network as %q", e.GetDetail())
		}
	}
}

// reach connects to allowed and other literals from a new sandbox.
func (l *literals) reach(t *testing.T) {
	own := l.v4.String()
	cidrs := []string{own}
	if l.v6.IsValid() {
		cidrs = append(cidrs, l.v6.String())
	}
	box := l.create(l.allow(cidrs...))
	l.expect(box, "python", l.get(l.v4), "content", 0)
	if l.v6.IsValid() {
		l.expect(box, "python, IPv6", l.get(l.v6), "content", 0)
	}
	if _, err := box.Write(t.Context(), "/workspace/net", build.GoProgram(t), sandgate.WriteRequest{}); err != nil {
		t.Fatal(err)
	}
	others := []string{"tcp=8.8.8.8:80", "tcp=169.254.169.254:80", "tcp=10.0.0.1:443", "tcp=203.0.113.7:80", "tcp=[2001:4860:4860::8888]:443", fmt.Sprintf("tcp=%s:1", own)}
	got, code := sh(t, box, fmt.Sprintf("chmod +x net; ./net 'tcp=%s:%d' '%s'", own, l.port, strings.Join(others, "' '")))
	lines := strings.Split(got, "\n")
	if code != 0 || len(lines) != 1+len(others) || !strings.HasSuffix(lines[0], "\topen") {
		t.Fatalf("%q, exit code %d", got, code)
	}
	for _, line := range lines[1:] {
		// The last is that of a sandbox without IPv6.
		if !strings.HasSuffix(line, "unreachable") && !strings.HasSuffix(line, "refused") && !strings.HasSuffix(line, "cannot assign requested address") {
			t.Errorf("got %q", line)
		}
	}
	l.expect(box, "a name", `python3 -c 'import socket; print(socket.gethostbyname("example.com"))'`, "198.18.", 0)
	// A server of the sandbox's own may have the port, at its loopback address.
	l.expect(box, "own server", fmt.Sprintf(`python3 -c 'import socket; socket.create_server(("127.0.0.1", %d)); print("bound")'`, l.port), "bound", 0)
}

// changeRules changes the rules of a live sandbox, and restarts the server.
func (l *literals) changeRules(t *testing.T) {
	box := l.create(l.allow())
	l.expect(box, "no rule", l.get(l.v4), "", curlNoConnection)
	l.update(box, l.allow(l.v4.String()))
	l.expect(box, "allowed", l.get(l.v4), "content", 0)
	l.expect(box, "hold", l.hold(l.v4), "", 0)
	// A range whose addresses cannot have a listener each, beside a name at the port.
	l.expect(box, "a name", fetchDirectly(fmt.Sprintf("http://example.com:%d/", l.port)), "", curlReset)
	l.update(box, l.allow(l.v4.String(), "203.0.113.0/24"))
	l.expect(box, "beside a range", l.get(l.v4), "content", 0)
	l.expect(box, "within the range", l.get(netip.MustParseAddr("203.0.113.9")), "", curlReset)
	l.expect(box, "a name", fetchDirectly(fmt.Sprintf("http://example.com:%d/", l.port)), "", curlReset)
	l.expect(box, "loopback", l.get(netip.MustParseAddr("127.0.0.1")), "", curlReset)
	l.expect(box, "beyond the range", l.get(netip.MustParseAddr("203.0.112.9")), "", curlNoConnection)
	l.expect(box, "metadata", fetchDirectly("http://169.254.169.254/"), "", curlNoConnection)
	if got, _ := sh(t, box, "cat outcome"); got != "" {
		t.Errorf("the connection of an allowed literal: %q", got)
	}
	seen := map[string]bool{}
	for len(l.audit.records) > 0 {
		seen[(<-l.audit.records).Target] = true
	}
	if want := fmt.Sprintf("203.0.113.9:%d", l.port); !seen[want] {
		t.Errorf("the server was not asked for %s, but %v", want, seen)
	}
	id := box.ID()
	l.stop()
	l.serve()
	box = l.client.Sandbox(id)
	l.expect(box, "after a restart", l.get(l.v4), "content", 0)
	l.expect(box, "hold", l.hold(l.v4), "", 0)
	l.update(box, l.allow("203.0.113.0/24"))
	l.expect(box, "not allowed any more", l.get(l.v4), "", curlNoConnection)
	l.expect(box, "its connection", outcome, "reset", 0)
	l.update(box, l.allow())
	l.expect(box, "the range is gone", l.get(netip.MustParseAddr("203.0.113.9")), "", curlNoConnection)
}

// TestEveryAddressRouted: rules for all public addresses lead every address to the agent,
// and open no other way out.
func TestEveryAddressRouted(t *testing.T) {
	l, change := serveLiterals(t)
	l.testbed = startChanged(t, "runc", local.ProfileDefault, func(cfg *server.Config) {
		change(cfg)
		cfg.Templates[0].Egress = append(cfg.Templates[0].Egress, &sandboxv1.EgressRule{Cidrs: []string{"0.0.0.0/0", "::/0"}, Ports: []uint32{l.port}})
	}, l.port)
	box := l.create(l.allow("0.0.0.0/0", "::/0", l.v4.String()))
	l.expect(box, "allowed", l.get(l.v4), "content", 0)
	for _, private := range []string{"169.254.169.254", "10.0.0.1", "fd00:ec2::254", "127.0.0.1"} {
		l.expect(box, private, l.get(netip.MustParseAddr(private)), "", curlReset)
	}
	if _, err := box.Write(t.Context(), "/workspace/net", build.GoProgram(t), sandgate.WriteRequest{}); err != nil {
		t.Fatal(err)
	}
	tries := []string{
		"tcp=8.8.8.8:443", "tcp=169.254.169.254:80", "tcp=[2001:4860:4860::8888]:443", "tcp=224.0.0.1:80", "udp=8.8.8.8:53", "udp=8.8.8.8:443",
		fmt.Sprintf("udp=8.8.8.8:%d", l.port), "udp=[2001:4860:4860::8888]:53", "udp=224.0.0.251:5353", "udp=255.255.255.255:67", "raw=ipv4", "raw=ipv6", "raw=packet",
	}
	got, code := sh(t, box, "chmod +x net; ./net '"+strings.Join(tries, "' '")+"'")
	lines := strings.Split(got, "\n")
	if code != 0 || len(lines) != len(tries) {
		t.Fatalf("%q, exit code %d", got, code)
	}
	for _, line := range lines {
		if strings.HasSuffix(line, "\topen") {
			t.Errorf("got %q", line)
		}
	}
}

// TestLiteralsOnGVisor: gVisor has no local routes. Literals need the proxy there.
func TestLiteralsOnGVisor(t *testing.T) {
	l, change := serveLiterals(t)
	l.testbed = startChanged(t, "runsc", local.ProfileDefault, change, l.port)
	l.expectDescription(true)
	box := l.create(l.allow(l.v4.String()))
	l.expect(box, "no proxy", l.get(l.v4), "", curlNoConnection)
	l.expect(box, "proxy", "curl -sS -m 20 "+l.url(l.v4), "content", 0)
	l.expect(box, "a name", "getent hosts example.com", "127.80.", 0)
}
