package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/clients/go/fake"
)

func TestEgressRule(t *testing.T) {
	for value, want := range map[string]struct {
		host, cidr, group string
		ports             []uint32
	}{
		"example.com":        {host: "example.com"},
		"example.com:8443":   {host: "example.com", ports: []uint32{8443}},
		"*.example.com":      {host: "*.example.com"},
		"*":                  {host: "*"},
		"db:5432":            {host: "db", ports: []uint32{5432}},
		"packages":           {group: "packages"},
		"192.0.2.7":          {cidr: "192.0.2.7/32"},
		"192.0.2.7:22":       {cidr: "192.0.2.7/32", ports: []uint32{22}},
		"10.0.0.0/8":         {cidr: "10.0.0.0/8"},
		"10.0.0.0/8:5432":    {cidr: "10.0.0.0/8", ports: []uint32{5432}},
		"2001:db8::1":        {cidr: "2001:db8::1/128"},
		"2001:db8::/32":      {cidr: "2001:db8::/32"},
		"[2001:db8::1]:443":  {cidr: "2001:db8::1/128", ports: []uint32{443}},
		"[2001:db8::/32]:80": {cidr: "2001:db8::/32", ports: []uint32{80}},
		"[::1]":              {cidr: "::1/128"},
	} {
		r, ok := egressRule(value)
		if !ok || strings.Join(r.GetHosts(), " ") != want.host || strings.Join(r.GetCidrs(), " ") != want.cidr ||
			r.GetGroup() != want.group || !slices.Equal(r.GetPorts(), want.ports) {
			t.Errorf("%s: %v %v", value, r, ok)
		}
	}
	for _, value := range []string{"", ":80", "example.com:", "example.com:0", "example.com:65536", "example.com:x", "a:b:c", "[::1", "[::1]x", "https://example.com", "fe80::1%eth0", "a b"} {
		if r, ok := egressRule(value); ok {
			t.Errorf("%q: %v", value, r)
		}
	}
}

func TestAllow(t *testing.T) {
	server := fake.Start(t, &fake.Server{})
	must(t, server, "create", "box", "--network", "proxy", "--allow", "example.com:443", "--allow", "packages")
	must(t, server, "update", "box", "--allow", "10.0.0.0/8:5432")
	got := must(t, server, "info", "box", "--output", "json")
	if !strings.Contains(got, `"10.0.0.0/8"`) || strings.Contains(got, "example.com") || !strings.Contains(got, "NETWORK_MODE_PROXY") {
		t.Errorf("got %s", got)
	}
	for _, command := range []string{"create other --allow https://x", "update box --allow a:b:c"} {
		if got := run(t.Context(), server, "", strings.Fields(command)...); got.code != failed || !strings.Contains(got.stderr, "--allow is HOST[:PORT]") {
			t.Errorf("%s: %+v", command, got)
		}
	}
}

func TestSecret(t *testing.T) {
	server := fake.Start(t, &fake.Server{})
	must(t, server, "create", "box", "--secret", "x-access-token@git.example.com:8443=git-token", "--secret", "api.example.com=key")
	got := strings.ReplaceAll(must(t, server, "info", "box", "--output", "json"), " ", "")
	for _, want := range []string{`"git.example.com"`, `8443`, `"user":"x-access-token"`, `"name":"git-token"`, `"name":"key"`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	for _, value := range []string{"git.example.com", "=x", "a.example=", "@a.example=x", "10.0.0.0/8=x", "packages=x"} {
		if got := run(t.Context(), server, "", "update", "box", "--secret", value); got.code != failed || !strings.Contains(got.stderr, "--secret is [USER@]HOST[:PORT]=NAME") {
			t.Errorf("%s: %+v", value, got)
		}
	}
}

func FuzzEgressRule(f *testing.F) {
	f.Add("example.com:443")
	f.Add("[2001:db8::/32]:80")
	f.Fuzz(func(t *testing.T, value string) {
		r, ok := egressRule(value)
		if ok && len(r.GetHosts())+len(r.GetCidrs())+len(r.GetGroup()) == 0 {
			t.Errorf("%q: %v", value, r)
		}
	})
}
