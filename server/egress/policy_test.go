package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func hosts(hosts ...string) *sandboxv1.EgressRule { return &sandboxv1.EgressRule{Hosts: hosts} }
func cidrs(cidrs ...string) *sandboxv1.EgressRule { return &sandboxv1.EgressRule{Cidrs: cidrs} }

func at(rule *sandboxv1.EgressRule, ports ...uint32) *sandboxv1.EgressRule {
	rule.Ports = ports
	return rule
}

func template(rules ...*sandboxv1.EgressRule) Layer { return Layer{Name: "the template", Rules: rules} }
func sandbox(rules ...*sandboxv1.EgressRule) Layer  { return Layer{Name: "the sandbox", Rules: rules} }

var anyPublic = Layer{Name: "the server", AnyPublic: true}

func compile(t testing.TB, layers ...Layer) *Policy {
	t.Helper()
	policy, err := Compile(nil, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

func parse(t testing.TB, host string, port uint32) Target {
	t.Helper()
	target, err := ParseTarget(host, port)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name   string
		layers []Layer
		host   string
		port   uint32
		want   Reason // empty: allowed
		layer  string
	}{
		{"an exact host", []Layer{sandbox(hosts("example.com"))}, "example.com", 443, "", ""},
		{"in another case, with a dot", []Layer{sandbox(hosts("example.com"))}, "Example.COM.", 443, "", ""},
		{"a rule in another case, with a dot", []Layer{sandbox(hosts("Example.COM."))}, "example.com", 80, "", ""},
		{"a rule in Unicode", []Layer{sandbox(hosts("bücher.example"))}, "xn--bcher-kva.example", 80, "", ""},
		{"a port that is not the default", []Layer{sandbox(hosts("example.com"))}, "example.com", 22, ReasonPort, "the sandbox"},
		{"own ports replace the default", []Layer{sandbox(at(hosts("example.com"), 22))}, "example.com", 443, ReasonPort, "the sandbox"},
		{"ports of two rules", []Layer{sandbox(at(hosts("example.com"), 22), hosts("example.com"))}, "example.com", 443, "", ""},
		{"a name below an exact host", []Layer{sandbox(hosts("example.com"))}, "a.example.com", 443, ReasonNoRule, "the sandbox"},
		{"a wildcard, one label", []Layer{sandbox(hosts("*.example.com"))}, "a.example.com", 443, "", ""},
		{"a wildcard, several labels", []Layer{sandbox(hosts("*.example.com"))}, "a.b.c.example.com", 443, "", ""},
		{"a wildcard without its own name", []Layer{sandbox(hosts("*.example.com"))}, "example.com", 443, ReasonNoRule, "the sandbox"},
		{"a wildcard needs the dot", []Layer{sandbox(hosts("*.example.com"))}, "badexample.com", 443, ReasonNoRule, "the sandbox"},
		{"a wildcard is at the end", []Layer{sandbox(hosts("*.example.com"))}, "a.example.com.evil.net", 443, ReasonNoRule, "the sandbox"},
		{"every name", []Layer{sandbox(hosts("*"))}, "anything.example", 443, "", ""},
		{"every name is no address", []Layer{sandbox(hosts("*"))}, "93.184.216.34", 443, ReasonNoRule, "the sandbox"},
		{"no layer", nil, "example.com", 443, ReasonNoRule, ""},
		{"layers without rules", []Layer{template(), sandbox()}, "example.com", 443, ReasonNoRule, ""},
		{"a bound alone", []Layer{anyPublic}, "example.com", 443, ReasonNoRule, ""},
		{"a bound and rules", []Layer{anyPublic, sandbox(at(hosts("example.com"), 22))}, "example.com", 22, "", ""},
		{"the template's rules alone", []Layer{template(hosts("example.com")), sandbox()}, "example.com", 443, "", ""},
		{"narrowed host", []Layer{template(hosts("*.example.com")), sandbox(hosts("a.example.com"))}, "b.example.com", 443, ReasonNoRule, "the sandbox"},
		{"narrowed wildcard", []Layer{template(hosts("*.example.com")), sandbox(hosts("*.a.example.com"))}, "x.a.example.com", 443, "", ""},
		{"narrowed port", []Layer{template(at(hosts("*"), 443, 22)), sandbox(at(hosts("example.com"), 22))}, "example.com", 443, ReasonPort, "the sandbox"},
		{"default ports within the template's", []Layer{template(at(hosts("*"), 443, 22)), sandbox(hosts("example.com"))}, "example.com", 80, ReasonPort, "the template"},
		{"a CIDR", []Layer{sandbox(cidrs("93.184.216.0/24"))}, "93.184.216.34", 443, "", ""},
		{"a CIDR in another notation", []Layer{sandbox(cidrs("93.184.216.0/24"))}, "0x5db8d822", 443, "", ""},
		{"an address without prefix length", []Layer{sandbox(cidrs("93.184.216.34"))}, "93.184.216.34", 443, "", ""},
		{"an address mapped to IPv6", []Layer{sandbox(cidrs("::ffff:93.184.216.0/120"))}, "93.184.216.34", 443, "", ""},
		{"a CIDR beside", []Layer{sandbox(cidrs("93.184.216.0/24"))}, "93.184.217.1", 443, ReasonNoRule, "the sandbox"},
		{"a CIDR's port", []Layer{sandbox(cidrs("93.184.216.0/24"))}, "93.184.216.34", 25, ReasonPort, "the sandbox"},
		{"a CIDR of IPv6", []Layer{sandbox(cidrs("2600::/16"))}, "2600:1::1", 443, "", ""},
		{"a CIDR is no name", []Layer{sandbox(cidrs("0.0.0.0/0"))}, "example.com", 443, ReasonNoRule, "the sandbox"},
		{"every address is no loopback", []Layer{sandbox(cidrs("0.0.0.0/0", "::/0"))}, "127.0.0.1", 443, ReasonNoRule, "the sandbox"},
		{"half of everything is no loopback", []Layer{sandbox(cidrs("0.0.0.0/1"))}, "127.0.0.1", 443, ReasonNoRule, "the sandbox"},
		{"loopback by its block", []Layer{sandbox(cidrs("127.0.0.0/8"))}, "127.0.0.1", 443, "", ""},
		{"metadata is not in link-local", []Layer{sandbox(cidrs("169.254.0.0/16"))}, "169.254.169.254", 80, ReasonNoRule, "the sandbox"},
		{"metadata by itself", []Layer{sandbox(cidrs("169.254.169.254/32"))}, "169.254.169.254", 80, "", ""},
		{"a private address in a public bound", []Layer{anyPublic, sandbox(cidrs("0.0.0.0/0"))}, "10.0.0.1", 443, ReasonAddress, "the server"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := compile(t, c.layers...).Check(parse(t, c.host, c.port))
			var denied *Denied
			switch {
			case c.want == "" && err != nil:
				t.Fatal(err)
			case c.want == "":
			case !errors.As(err, &denied) || denied.Reason != c.want || !strings.Contains(denied.Error(), c.layer):
				t.Fatalf("got %#v, want reason %s of %q", err, c.want, c.layer)
			}
		})
	}
}

func TestZeroPolicyAndTargetAreDenied(t *testing.T) {
	var none *Policy
	for _, err := range []error{
		none.Check(parse(t, "example.com", 443)),
		none.CheckAddr(parse(t, "example.com", 443), netip.MustParseAddr("93.184.216.34")),
		(&Policy{}).Check(parse(t, "example.com", 443)),
		compile(t, sandbox(hosts("*"))).Check(Target{}),
	} {
		var denied *Denied
		if !errors.As(err, &denied) {
			t.Errorf("got %v", err)
		}
	}
	if got := none.Ports("example.com"); got != nil {
		t.Errorf("nil policy has ports %v", got)
	}
}

func TestDeniedNamesTheMissingRule(t *testing.T) {
	policy := compile(t, template(at(hosts("*"), 443), cidrs("10.0.0.0/8")), sandbox(at(hosts("*.example.com"), 443)))
	for _, c := range []struct{ host, want string }{
		{"example.net", `connection to example.net:22 denied: the rules of the template allow example.net only at 443; it needs hosts: ["example.net"], ports: [22]`},
		{"10.1.1.1", `connection to 10.1.1.1:22 denied: the rules of the template allow 10.1.1.1 only at 80, 443; it needs cidrs: ["10.1.1.1/32"], ports: [22]`},
		{"::1", `connection to [::1]:22 denied: no rule of the template allows it; it needs cidrs: ["::1/128"], ports: [22]`},
	} {
		if err := policy.Check(parse(t, c.host, 22)); err == nil || err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
	err := policy.CheckAddr(parse(t, "a.example.com", 443), netip.MustParseAddr("10.0.0.1"))
	const want = `connection to a.example.com:443 denied: a.example.com resolves to 10.0.0.1, a private address; the sandbox needs a rule with cidrs: ["10.0.0.1/32"], ports: [443]`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestPorts(t *testing.T) {
	policy := compile(t, anyPublic, template(at(hosts("*"), 22, 80, 443), cidrs("93.0.0.0/8")), sandbox(at(hosts("a.example"), 22, 443), hosts("b.example")))
	for host, want := range map[string][]uint16{
		"a.example": {22, 443}, "A.EXAMPLE.": {22, 443}, "b.example": {80, 443},
		"c.example": nil, "10.0.0.1": nil, "bad host": nil, "": nil,
	} {
		if got := policy.Ports(host); !slices.Equal(got, want) {
			t.Errorf("Ports(%q) = %v, want %v", host, got, want)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	groups := Groups{
		"packages": {hosts("index.example"), at(hosts("files.example"), 443)},
		"nested":   {{Group: "packages"}},
		"broken":   {hosts("a b")},
	}
	many := func(n int, text string) []string { return slices.Repeat([]string{text}, n) }
	for _, c := range []struct {
		name    string
		layers  []Layer
		field   string
		text    string
		outside bool
	}{
		{"an empty rule", []Layer{sandbox(hosts())}, "[0].hosts", "needs hosts, CIDRs or a group", false},
		{"an empty host", []Layer{sandbox(hosts("a.example", ""))}, "[0].hosts[1]", "not a host name", false},
		{"a URL", []Layer{sandbox(hosts("https://example.com"))}, "[0].hosts[0]", "without scheme", false},
		{"a port", []Layer{sandbox(hosts("example.com:443"))}, "[0].hosts[0]", "ports have a field", false},
		{"an address", []Layer{sandbox(hosts("10.0.0.1"))}, "[0].hosts[0]", "CIDR 10.0.0.1/32", false},
		{"an address of IPv6", []Layer{sandbox(hosts("::1"))}, "[0].hosts[0]", "CIDR ::1/128", false},
		{"an address in hexadecimal", []Layer{sandbox(hosts("0x7f000001"))}, "[0].hosts[0]", "CIDR 127.0.0.1/32", false},
		{"a CIDR as host", []Layer{sandbox(hosts("10.0.0.0/8"))}, "[0].hosts[0]", "addresses are in cidrs", false},
		{"a wildcard inside", []Layer{sandbox(hosts("a.*.example.com"))}, "[0].hosts[0]", "a wildcard is", false},
		{"a wildcard in a label", []Layer{sandbox(hosts("a*.example.com"))}, "[0].hosts[0]", "a wildcard is", false},
		{"two wildcards", []Layer{sandbox(hosts("*.*.com"))}, "[0].hosts[0]", "a wildcard is", false},
		{"a wildcard of nothing", []Layer{sandbox(hosts("*."))}, "[0].hosts[0]", "not a host name", false},
		{"a wildcard of an address", []Layer{sandbox(hosts("*.0.0.1"))}, "[0].hosts[0]", "", false},
		{"a broken CIDR", []Layer{sandbox(cidrs("10.0.0.0/33"))}, "[0].cidrs[0]", "not a CIDR", false},
		{"a name as CIDR", []Layer{sandbox(cidrs("example.com"))}, "[0].cidrs[0]", "not a CIDR", false},
		{"a CIDR with a zone", []Layer{sandbox(cidrs("fe80::1%eth0"))}, "[0].cidrs[0]", "not a CIDR", false},
		{"bits beyond the prefix", []Layer{sandbox(cidrs("10.0.0.1/8"))}, "[0].cidrs[0]", "write 10.0.0.0/8", false},
		{"a mapped CIDR that is wider", []Layer{sandbox(cidrs("::ffff:0:0/90"))}, "[0].cidrs[0]", "", false},
		{"port 0", []Layer{sandbox(at(hosts("a.example"), 443, 0))}, "[0].ports[1]", "1 to 65535", false},
		{"a large port", []Layer{sandbox(at(hosts("a.example"), 65536))}, "[0].ports[0]", "1 to 65535", false},
		{"many rules", []Layer{sandbox(slices.Repeat([]*sandboxv1.EgressRule{hosts("a.example")}, 65)...)}, "", "at most 64", false},
		{"many hosts", []Layer{sandbox(hosts(many(257, "a.example")...))}, "[0].hosts", "at most 256", false},
		{"many CIDRs", []Layer{sandbox(cidrs(many(257, "10.0.0.0/8")...))}, "[0].cidrs", "at most 256", false},
		{"an unknown group", []Layer{sandbox(&sandboxv1.EgressRule{Group: "pakages"})}, "[0].group", "the server has broken, nested, packages", false},
		{"a group with hosts", []Layer{sandbox(&sandboxv1.EgressRule{Group: "packages", Hosts: []string{"a.example"}})}, "[0].group", "no other fields", false},
		{"a nested group", []Layer{sandbox(&sandboxv1.EgressRule{Group: "nested"})}, "[0].group", "another group", false},
		{"a broken group", []Layer{sandbox(&sandboxv1.EgressRule{Group: "broken"})}, "[0].hosts[0]", "not a host name", false},

		{"another host", []Layer{template(hosts("a.example")), sandbox(hosts("a.example"), hosts("b.example"))}, "[1].hosts[0]", "the template does not allow b.example at any port", true},
		{"a wider wildcard", []Layer{template(hosts("*.a.example")), sandbox(hosts("*.example"))}, "[0].hosts[0]", "", true},
		{"a wildcard beyond an exact host", []Layer{template(hosts("a.example")), sandbox(hosts("*.a.example"))}, "[0].hosts[0]", "", true},
		{"every name", []Layer{template(hosts("*.example")), sandbox(hosts("*"))}, "[0].hosts[0]", "", true},
		{"another port", []Layer{template(hosts("a.example")), sandbox(at(hosts("a.example"), 443, 22))}, "[0].hosts[0]", "at port 22, only at 80, 443", true},
		{"default ports beyond", []Layer{template(at(hosts("a.example"), 22)), sandbox(hosts("a.example"))}, "[0].hosts[0]", "at port 80, only at 22", true},
		{"a wider CIDR", []Layer{template(cidrs("10.1.0.0/16")), sandbox(cidrs("10.0.0.0/8"))}, "[0].cidrs[0]", "", true},
		{"a private CIDR in a public one", []Layer{template(cidrs("0.0.0.0/0")), sandbox(cidrs("10.0.0.0/8"))}, "[0].cidrs[0]", "", true},
		{"a private CIDR in a public bound", []Layer{anyPublic, sandbox(cidrs("10.0.0.0/8"))}, "[0].cidrs[0]", "", true},
		{"metadata in link-local", []Layer{template(cidrs("169.254.0.0/16")), sandbox(cidrs("169.254.169.254/32"))}, "[0].cidrs[0]", "", true},
		{"a group beyond", []Layer{template(hosts("a.example")), sandbox(&sandboxv1.EgressRule{Group: "packages"})}, "[0].group", "nothing of the group packages", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Compile(groups, c.layers...)
			var bad *RuleError
			if !errors.As(err, &bad) || bad.Field != c.field || !strings.Contains(err.Error(), c.text) || errors.Is(err, ErrOutside) != c.outside {
				t.Fatalf("got %v, field %q; want field %q, %q, outside %t", err, bad.Field, c.field, c.text, c.outside)
			}
			if len(err.Error()) > 1024 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestGroupNarrowsToWhatTheTemplateAllows(t *testing.T) {
	groups := Groups{"packages": {hosts("index.example", "other.example"), at(hosts("files.example"), 8443)}}
	policy, err := Compile(groups, template(hosts("index.example")), sandbox(&sandboxv1.EgressRule{Group: "packages"}))
	if err != nil {
		t.Fatal(err)
	}
	if err := policy.Check(parse(t, "index.example", 443)); err != nil {
		t.Error(err)
	}
	for _, host := range []string{"other.example", "files.example"} {
		if policy.Ports(host) != nil {
			t.Errorf("%s is allowed", host)
		}
	}
}

// drawRules returns rules of a small world, in which they often overlap.
func drawRules(t *rapid.T, label string) []*sandboxv1.EgressRule {
	rule := rapid.Custom(func(t *rapid.T) *sandboxv1.EgressRule {
		host := rapid.SampledFrom([]string{"*", "*.example", "*.a.example", "a.example", "b.a.example", "c.b.a.example"})
		cidr := rapid.SampledFrom([]string{"0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "93.0.0.0/8", "169.254.0.0/16", "169.254.169.254/32", "::/0", "fd00::/8"})
		return &sandboxv1.EgressRule{
			Hosts: rapid.SliceOfN(host, 1, 3).Draw(t, "hosts"),
			Cidrs: rapid.SliceOfN(cidr, 0, 3).Draw(t, "cidrs"),
			Ports: rapid.SliceOfN(rapid.SampledFrom([]uint32{22, 80, 443}), 0, 2).Draw(t, "ports"),
		}
	})
	return rapid.SliceOfN(rule, 1, 4).Draw(t, label)
}

// world is every target and address that the property tests ask for.
func world(t interface{ Fatal(...any) }) (targets []Target, addrs []netip.Addr) {
	for _, host := range []string{"example", "x.example", "a.example", "b.a.example", "d.c.b.a.example", "93.1.1.1", "10.0.0.1", "10.1.0.1", "169.254.1.1", "169.254.169.254", "2600::1", "fd00::1", "::1"} {
		for _, port := range []uint32{22, 80, 443, 8080} {
			target, err := ParseTarget(host, port)
			if err != nil {
				t.Fatal(err)
			}
			targets = append(targets, target)
		}
		if addr, err := netip.ParseAddr(host); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return targets, addrs
}

func TestNarrowingIsMonotone(t *testing.T) {
	targets, addrs := world(t)
	rapid.Check(t, func(t *rapid.T) {
		wide, narrow := drawRules(t, "wide"), drawRules(t, "narrow")
		outer, err := Compile(nil, template(wide...))
		if err != nil {
			t.Fatal(err)
		}
		inner, err := Compile(nil, template(wide...), sandbox(narrow...))
		if err != nil && !errors.Is(err, ErrOutside) {
			t.Fatal(err)
		}
		alone, aloneErr := Compile(nil, sandbox(narrow...))
		if aloneErr != nil {
			t.Fatal(aloneErr)
		}
		more, moreErr := Compile(nil, template(append(wide, narrow...)...))
		if moreErr != nil {
			t.Fatal(moreErr)
		}
		for _, target := range targets {
			for _, addr := range addrs {
				byOuter, byAlone := outer.CheckAddr(target, addr) == nil, alone.CheckAddr(target, addr) == nil
				if err == nil && inner.CheckAddr(target, addr) == nil != (byOuter && byAlone) {
					t.Fatalf("%v at %v: template %t, sandbox alone %t, and both differ", target, addr, byOuter, byAlone)
				}
				if byOuter && more.CheckAddr(target, addr) != nil {
					t.Fatalf("%v at %v is denied by more rules", target, addr)
				}
			}
			if want := outer.Check(target) == nil; !target.IsAddr() && slices.Contains(outer.Ports(target.Host()), target.port) != want {
				t.Fatalf("Ports and Check differ for %v", target)
			}
		}
	})
}

func FuzzRules(f *testing.F) {
	f.Add("example.com", "10.0.0.0/8", uint32(443), "group")
	f.Add("*.bücher.example", "::ffff:1.2.3.4", uint32(0), "")
	f.Fuzz(func(t *testing.T, host, cidr string, port uint32, group string) {
		rule := &sandboxv1.EgressRule{Hosts: []string{host}, Cidrs: []string{cidr}, Ports: []uint32{port}, Group: group}
		if cidr == "" {
			rule.Cidrs = nil
		}
		policy, err := Compile(Groups{"group": {hosts("a.example")}}, sandbox(rule))
		if err != nil {
			var bad *RuleError
			if !errors.As(err, &bad) || len(err.Error()) > 1024 || strings.ContainsAny(err.Error(), "\r\n\x00") {
				t.Fatalf("%q", err)
			}
			return
		}
		// A rule lies within itself.
		if _, err := Compile(nil, template(rule), sandbox(rule)); err != nil {
			t.Fatal(err)
		}
		if name, ok := strings.CutPrefix(host, "*"); ok {
			host = "a" + name
			if name == "" {
				host = "a.example"
			}
		}
		if target, err := ParseTarget(host, port); err == nil && !target.IsAddr() && policy.Check(target) != nil {
			t.Fatalf("%v is denied by its own rule", target)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	var rules []*sandboxv1.EgressRule
	for i := range 32 {
		rules = append(rules, hosts(fmt.Sprintf("host%d.example.com", i), fmt.Sprintf("*.wild%d.example.com", i), fmt.Sprintf("*.w%d.example.net", i)),
			at(cidrs(fmt.Sprintf("10.%d.0.0/16", i), fmt.Sprintf("93.%d.0.0/16", i)), 22, 443))
	}
	policy := compile(b, template(rules...), sandbox(rules...))
	for _, host := range []string{"host31.example.com", "a.b.wild31.example.com", "10.31.0.1"} {
		b.Run(host, func(b *testing.B) {
			target := parse(b, host, 443)
			for b.Loop() {
				if err := policy.Check(target); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("parsed, with its address", func(b *testing.B) {
		addr := netip.MustParseAddr("10.31.0.1")
		for b.Loop() {
			target, err := ParseTarget("host31.example.com", 443)
			if err != nil {
				b.Fatal(err)
			}
			if err := policy.CheckAddr(target, addr); err != nil {
				b.Fatal(err)
			}
		}
	})
}
