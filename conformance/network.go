package conformance

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const groupNetwork = "network"

var networkCases = []Case{
	{Name: "C29_no_way_around", Group: groupNetwork, proxy: true, run: noWayAround},
	{Name: "C29_refused_destinations", Group: groupNetwork, proxy: true, run: refusedDestinations},
	{Name: "C29_names", Group: groupNetwork, proxy: true, run: refusedNames},
	{Name: "C29_rules_beyond_the_template", Group: groupNetwork, proxy: true, run: malformedRules},
	{Name: "C29_allowed_destination", Group: groupNetwork, proxy: true, run: allowedDestination},
	{Name: "C29_update", Group: groupNetwork, proxy: true, run: updatedRules},
}

// allowedName is a name that the rules of these cases allow and nobody has.
const allowedName = "allowed.invalid"

// attempt is a connection that conformance/goprogram tries, and a part of what must
// come of it, or several, of which one must: "a|b".
type attempt struct{ try, want string }

// anAddress is the wanted result of a lookup: the address of a name is from one of
// two blocks, depending on whether the sandbox has a local route.
const anAddress = "198.18.|127.80."

// refused prefixes the wanted results that must not be "open".
const refused = "!"

// networked creates a sandbox with the network mode PROXY and these rules.
func (s *Suite) networked(ctx context.Context, t T, rules ...*sandboxv1.EgressRule) (Sandbox, *sandgate.Sandbox) {
	t.Helper()
	if len(s.opts.GoProgram) == 0 {
		t.Skipf("no static build of conformance/goprogram was given")
	}
	request := s.request("")
	request.Spec = &sandgate.Spec{Network: &sandgate.Network{Mode: sandboxv1.NetworkMode_NETWORK_MODE_PROXY, Allow: rules}}
	made := s.create(ctx, t, request)
	t.Cleanup(func() { s.delete(t, made) })
	dir := s.workdir(ctx, t, made)
	box := Sandbox{Client: s.stub, ID: made.ID(), dir: dir}
	if r := box.upload(ctx, t, file{dir + "/net", s.opts.GoProgram})[0]; r.GetError() != nil {
		t.Fatalf("upload: %v", r)
	}
	if r := box.sh(ctx, t, "chmod +x net"); r.code() != 0 {
		t.Fatalf("%v", r)
	}
	return box, made
}

// try makes all attempts and compares what came of them.
func (s Sandbox) try(ctx context.Context, t T, all ...attempt) {
	t.Helper()
	tries := make([]string, 0, len(all))
	for _, a := range all {
		tries = append(tries, a.try)
	}
	for i, got := range s.results(ctx, t, "", tries...) {
		want, not := strings.CutPrefix(all[i].want, refused)
		comes := func(part string) bool { return strings.Contains(got, part) }
		if not && got == "open" || !slices.ContainsFunc(strings.Split(want, "|"), comes) {
			t.Errorf("%s: got %q, want %q", all[i].try, got, all[i].want)
		}
	}
}

// results makes attempts at once, and returns what came of each. prefix is what the
// shell's command begins with, such as variables.
func (s Sandbox) results(ctx context.Context, t T, prefix string, tries ...string) []string {
	t.Helper()
	r := s.sh(ctx, t, prefix+" ./net '"+strings.Join(tries, "' '")+"'")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if r.code() != 0 || len(lines) != len(tries) {
		t.Fatalf("%d results of %d attempts: %v", len(lines), len(tries), r)
	}
	for i, try := range tries {
		name, result, _ := strings.Cut(lines[i], "\t")
		if name != try {
			t.Errorf("the result of %s is one of %s", try, name)
		}
		lines[i] = result
	}
	return lines
}

func allowHost(host string, ports ...uint32) *sandboxv1.EgressRule {
	return &sandboxv1.EgressRule{Hosts: []string{host}, Ports: ports}
}

// noWayAround tries everything but the proxy.
func noWayAround(ctx context.Context, t T, s *Suite) {
	box, _ := s.networked(ctx, t, allowHost(allowedName))
	box.try(ctx, t,
		attempt{"tcp=8.8.8.8:443", refused}, attempt{"tcp=1.1.1.1:80", refused}, attempt{"tcp=169.254.169.254:80", refused},
		attempt{"tcp=10.0.0.1:443", refused}, attempt{"tcp=172.17.0.1:22", refused}, attempt{"tcp=192.168.0.1:80", refused},
		attempt{"tcp=100.64.0.1:80", refused}, attempt{"tcp=198.18.0.1:80", refused}, attempt{"tcp=[2001:4860:4860::8888]:443", refused},
		attempt{"tcp=[fe80::1]:80", refused}, attempt{"tcp=[fd00:ec2::254]:80", refused}, attempt{"tcp=[64:ff9b::808:808]:443", refused},
		attempt{"tcp=[::ffff:8.8.8.8]:443", refused}, attempt{"tcp=0.0.0.0:1", refused}, attempt{"tcp=127.0.0.1:1", refused},
		attempt{"tcp=127.80.0.1:443", refused}, attempt{"tcp=[::1]:443", refused},
		attempt{"udp=8.8.8.8:53", refused}, attempt{"udp=8.8.8.8:443", refused}, attempt{"udp=[2001:4860:4860::8888]:53", refused},
		attempt{"udp=255.255.255.255:67", refused}, attempt{"udp=224.0.0.251:5353", refused}, attempt{"udp=127.0.0.1:1", refused},
		attempt{"raw=ipv4", refused}, attempt{"raw=ipv6", refused}, attempt{"raw=packet", refused},
		attempt{"unix=@/containerd-shim", refused}, attempt{"unix=/var/run/docker.sock", refused}, attempt{"unix=/run/dbus/system_bus_socket", refused},
	)
	box.try(ctx, t, s.toServer()...)
}

// refusedDestinations asks the proxy for what no rule allows, in many notations.
func refusedDestinations(ctx context.Context, t T, s *Suite) {
	box, _ := s.networked(ctx, t, allowHost(allowedName), allowHost("*."+allowedName, 443))
	all := []attempt{
		{"connect=" + allowedName + ":443", " 502 "}, {"socks=" + allowedName + ":443", "reply 4"},
		{"connect=" + strings.ToUpper(allowedName) + ".:443", " 502 "}, {"connect=a." + allowedName + ":443", " 502 "},
		{"connect=" + allowedName + ":22", " 403 "}, {"connect=a." + allowedName + ":80", " 403 "},
		{"connect=" + allowedName, " 400 "}, {"connect=" + allowedName + ":0", " 400 "}, {"connect=" + allowedName + ":70000", " 400 "},
		{"connect=not" + allowedName + ":443", " 403 "}, {"connect=" + allowedName + ".evil.example:443", " 403 "},
		{"connect=" + allowedName + "%00.evil.example:443", " 400 "}, {"connect=xn--80ak6aa92e.com:443", " 403 "},
		{"connect=.:443", " 403 "}, {"connect=*." + allowedName + ":443", " 403 "},
		{"associate=" + allowedName + ":443", "reply 7"}, {"socks=evil.example:443", "reply 2"},
		{"absolute=http://evil.example/", "403 Forbidden"}, {"absolute=https://" + allowedName + "/", "400 Bad Request"},
		{"absolute=http://" + allowedName + "@evil.example/", "403 Forbidden"}, {"absolute=/", "400 Bad Request"},
		{"absolute=ftp://evil.example/", "400 Bad Request"},
	}
	for _, address := range []string{
		"127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1", "localhost", "0.0.0.0", "0",
		"169.254.169.254", "2852039166", "0xa9fea9fe", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1",
		"224.0.0.1", "255.255.255.255", "192.0.2.1", "8.8.8.8", "134744072",
		"[::1]", "[::]", "[::ffff:127.0.0.1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::a9fe:a9fe]", "[2002:7f00:1::]",
		"[fe80::1]", "[fd00:ec2::254]", "[ff02::1]", "[2001:db8::1]", "[2001:0:7f00:1::]", "[2001:4860:4860::8888]",
	} {
		all = append(all, attempt{"connect=" + address + ":443", " 403 "})
	}
	box.try(ctx, t, all...)
	// The answer names the rule that is missing.
	box.try(ctx, t, attempt{"connect=evil.example:443", `hosts: ["evil.example"], ports: [443]`})
}

// refusedNames asks the name server: what no rule allows does not exist, and
// nothing is asked outside.
func refusedNames(ctx context.Context, t T, s *Suite) {
	box, _ := s.networked(ctx, t, allowHost(allowedName), allowHost("*.wild.invalid"))
	box.try(ctx, t,
		attempt{"lookup=" + allowedName, anAddress}, attempt{"lookup=" + strings.ToUpper(allowedName), anAddress}, attempt{"lookup=any.wild.invalid", anAddress},
		attempt{"lookup=localhost", "127.0.0.1"}, attempt{"lookup=evil.example", "no such host"}, attempt{"lookup=a." + allowedName, "no such host"},
		attempt{"lookup=wild.invalid", "no such host"}, attempt{"lookup=c2VjcmV0.evil.example", "no such host"},
		attempt{"lookup=metadata.google.internal", "no such host"}, attempt{"lookup=kubernetes.default.svc", "no such host"},
		attempt{"query=" + allowedName, "no such host"}, attempt{"query=evil.example", "no such host"},
		// The address of a name leads to the server, which finds that it does not
		// resolve.
		attempt{"get=" + allowedName + ":80", refused}, attempt{"get=evil.example:80", "no such host"},
	)
	box.try(ctx, t, queries()...)
}

// malformedRules are rejected, each with its field.
func malformedRules(ctx context.Context, t T, s *Suite) {
	for _, c := range []struct {
		rule  *sandboxv1.EgressRule
		field string
	}{
		{&sandboxv1.EgressRule{}, "[0]"},
		{allowHost("a b.example"), "[0].hosts[0]"},
		{allowHost("*.*.example"), "[0].hosts[0]"},
		{allowHost("a.example", 0), "[0].ports[0]"},
		{allowHost("a.example", 65536), "[0].ports[0]"},
		{&sandboxv1.EgressRule{Cidrs: []string{"10.0.0.0/33"}}, "[0].cidrs[0]"},
		{&sandboxv1.EgressRule{Cidrs: []string{"a.example"}}, "[0].cidrs[0]"},
		{&sandboxv1.EgressRule{Group: "no-such-group"}, "[0].group"},
		{&sandboxv1.EgressRule{Group: "packages", Hosts: []string{"a.example"}}, "[0].group"},
	} {
		request := s.request("")
		request.ID = "conformance-" + s.run + "-rules"
		request.Spec = &sandgate.Spec{Network: &sandgate.Network{Allow: []*sandboxv1.EgressRule{c.rule}}}
		_, _, err := s.client.Create(ctx, request)
		if errors.Is(err, sandgate.Reason("TEMPLATE_FORBIDS")) {
			t.Skipf("the template does not allow rules: %v", err)
		}
		if err == nil || !strings.Contains(err.Error(), "spec.network.allow"+c.field) {
			t.Errorf("%v: %v does not name the field %s", c.rule, err, c.field)
		}
	}
}

// upstream serves HTTP at Options.Upstream and returns host and port.
func (s *Suite) upstream(t T) (host, port string) {
	t.Helper()
	return s.serveUpstream(t, nil, func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "upstream of %s", r.Host)
	})
}

// upstreamAddress returns host and port of Options.Upstream, or skips the case.
func (s *Suite) upstreamAddress(t T) (host, port string) {
	t.Helper()
	host, port, err := net.SplitHostPort(s.opts.Upstream)
	if err != nil {
		t.Skipf("no address was given at which sandboxes may reach this suite")
	}
	return host, port
}

// serveUpstream serves at Options.Upstream, over TLS if there is a certificate, and
// returns host and port.
func (s *Suite) serveUpstream(t T, certificate *tls.Certificate, handler http.HandlerFunc) (host, port string) {
	t.Helper()
	host, port = s.upstreamAddress(t)
	l, err := net.Listen("tcp4", ":"+port)
	if err != nil {
		t.Fatalf("listen for the sandboxes' connections: %v", err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
	served := make(chan error, 1)
	go func() {
		if certificate == nil {
			served <- server.Serve(l)
			return
		}
		server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS12}
		served <- server.ServeTLS(l, "", "")
	}()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve the sandboxes' connections: %v", err)
		}
	})
	return host, port
}

// upstreamPort returns the ports of a rule for the suite's own upstream.
func upstreamPort(port string) []uint32 {
	var n uint32
	_, _ = fmt.Sscan(port, &n)
	return []uint32{n}
}

// upstreamRule allows the suite's own upstream, at its address, too.
func upstreamRule(host, port string) []*sandboxv1.EgressRule {
	return []*sandboxv1.EgressRule{{Hosts: []string{host}, Cidrs: []string{"127.0.0.0/8"}, Ports: upstreamPort(port)}}
}

// allowedDestination reaches the suite itself in every way, and nothing under
// another name.
func allowedDestination(ctx context.Context, t T, s *Suite) {
	host, port := s.upstream(t)
	box, _ := s.networked(ctx, t, upstreamRule(host, port)...)
	at := net.JoinHostPort(host, port)
	ok := "200 OK upstream of " + at
	box.try(ctx, t,
		attempt{"get=" + at, ok}, attempt{"absolute=http://" + at + "/", ok}, attempt{"http=" + at + "," + at, ok},
		attempt{"connect=127.0.0.1:" + port, " 200 "}, attempt{"connect=2130706433:" + port, " 200 "},
		attempt{"socks=" + at, "reply 0"}, attempt{"socks=127.0.0.1:" + port, "reply 0"},
		attempt{"http=" + at + ",evil.example", "403 "}, attempt{"http=" + at + "," + host + ".evil.example", "403 "},
		attempt{"tls=" + at + ",evil.example", refused}, attempt{"tls=" + at + ",127.0.0.1", refused},
		attempt{"connect=127.0.0.1:1", " 403 "}, attempt{"connect=[::1]:" + port, " 403 "},
	)
}

// updatedRules change a live sandbox: what they no longer allow ends.
func updatedRules(ctx context.Context, t T, s *Suite) {
	host, port := s.upstream(t)
	box, made := s.networked(ctx, t, upstreamRule(host, port)...)
	at := net.JoinHostPort(host, port)
	box.try(ctx, t, attempt{"connect=" + at, " 200 "})
	info, err := s.client.Update(ctx, made.ID(), sandgate.UpdateRequest{Network: &sandgate.Network{Allow: []*sandboxv1.EgressRule{{Cidrs: []string{"127.0.0.1/32"}, Ports: upstreamPort(port)}}}})
	if err != nil {
		t.Fatalf("update: %v", err)
	}
	if got := info.GetSpec().GetNetwork().GetAllow(); len(got) != 1 || len(got[0].GetHosts()) > 0 {
		t.Errorf("the sandbox shows %v", got)
	}
	box.try(ctx, t, attempt{"connect=" + at, " 403 "}, attempt{"lookup=" + host, "no such host"}, attempt{"connect=127.0.0.1:" + port, " 200 "})
	if _, err := s.client.Update(ctx, made.ID(), sandgate.UpdateRequest{Network: &sandgate.Network{Mode: sandboxv1.NetworkMode_NETWORK_MODE_FULL}}); err == nil {
		t.Errorf("the mode changed")
	}
}
