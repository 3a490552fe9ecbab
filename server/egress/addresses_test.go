package egress

import (
	"fmt"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func TestAddresses(t *testing.T) {
	rule := func(cidr string, ports ...uint32) *sandboxv1.EgressRule {
		return &sandboxv1.EgressRule{Cidrs: []string{cidr}, Ports: ports}
	}
	layers := func(all ...[]*sandboxv1.EgressRule) (out []Layer) {
		for i, rules := range all {
			out = append(out, Layer{Name: fmt.Sprint("layer ", i), Rules: rules})
		}
		return out
	}
	type rules = []*sandboxv1.EgressRule
	for _, c := range []struct {
		name   string
		layers []Layer
		want   string
	}{
		{"none", nil, "[]"},
		{"names only", layers(rules{{Hosts: []string{"a.example"}}}), "[]"},
		{"default ports", layers(rules{rule("192.0.2.0/24")}), "[{192.0.2.0/24 [80 443]}]"},
		{"sorted", layers(rules{rule("192.0.2.7/32", 5), rule("10.0.0.0/8", 6), rule("2001:db8::/32", 7)}), "[{10.0.0.0/8 [6]} {192.0.2.7/32 [5]} {2001:db8::/32 [7]}]"},
		{"one in another", layers(rules{rule("10.0.0.0/8", 6), rule("10.1.0.0/16", 7)}), "[{10.0.0.0/8 [6]} {10.1.0.0/16 [6 7]}]"},
		{"the sandbox's narrow the template's", layers(rules{rule("10.0.0.0/8", 6, 7)}, rules{rule("10.1.2.3/32", 7)}), "[{10.1.2.3/32 [7]}]"},
		{"the sandbox has none of its own", layers(rules{rule("10.0.0.0/8", 6, 7)}, nil), "[{10.0.0.0/8 [6 7]}]"},
		{
			"of requests only", layers(rules{{Hosts: []string{"a.example"}, Cidrs: []string{"10.0.0.0/8"}, Methods: []string{"GET"}}}),
			"[]",
		},
		{"a sandbox's own blocks", layers(rules{rule("127.0.0.0/8"), rule("::1/128"), rule("fe80::/10"), rule("198.18.3.0/24"), rule("224.0.0.0/4"), rule("0.0.0.0/0", 1)}), "[{0.0.0.0/0 [1]}]"},
		{
			"a caller's own server", append([]Layer{{Name: "server", AnyPublic: true}}, layers(rules{rule("0.0.0.0/0", 1), rule("8.8.8.0/24", 2)})...),
			"[{0.0.0.0/0 [1]} {8.8.8.0/24 [1 2]}]",
		},
	} {
		policy, err := Compile(nil, c.layers...)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := fmt.Sprint(policy.Addresses()); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	var many rules
	for i := range 60 {
		many = append(many, &sandboxv1.EgressRule{Cidrs: []string{
			fmt.Sprintf("10.%d.0.0/16", i), fmt.Sprintf("172.16.%d.0/24", i), fmt.Sprintf("192.168.%d.0/24", i), fmt.Sprintf("9.%d.0.0/16", i), fmt.Sprintf("8.%d.0.0/16", i),
		}})
	}
	policy, err := Compile(nil, layers(many)...)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(policy.Addresses()); got != maxAddressRanges {
		t.Errorf("%d ranges", got)
	}
	if got := (*Policy)(nil).Addresses(); got != nil {
		t.Error(got)
	}
}
