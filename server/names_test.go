package server

import (
	"regexp"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/wire"
)

func TestSubstrateNames(t *testing.T) {
	valid := regexp.MustCompile(`^sg-[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?$`)
	seen := make(map[string][2]string)
	rapid.Check(t, func(t *rapid.T) {
		tenant := rapid.String().Draw(t, "tenant")
		id := rapid.StringMatching(`[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}`).Draw(t, "id")
		name := substrateName(tenant, id)
		if !valid.MatchString(name) || len(name) > 63 {
			t.Fatalf("%q is no DNS label", name)
		}
		if other, ok := seen[name]; ok && other != [2]string{tenant, id} {
			t.Fatalf("%q for %q and %q", name, other, [2]string{tenant, id})
		}
		seen[name] = [2]string{tenant, id}
	})
	if got := substrateName("t", "My_Thread.1"); !regexp.MustCompile(`^sg-my-thread-1-[a-z2-7]{20}$`).MatchString(got) {
		t.Errorf("got %q", got)
	}
	if substrateName("ab", "c") == substrateName("a", "bc") {
		t.Error("tenant and id run into each other")
	}
}

func TestSpecHash(t *testing.T) {
	options, err := structpb.NewStruct(map[string]any{"a": 1.5, "b": []any{"x", true, nil}})
	if err != nil {
		t.Fatal(err)
	}
	req := func(change func(*sandboxv1.CreateSandboxRequest)) *sandboxv1.CreateSandboxRequest {
		r := &sandboxv1.CreateSandboxRequest{
			Spec:            &sandboxv1.SandboxSpec{Image: "i", Env: map[string]string{"A": "1", "B": "2"}, Command: []string{"a", "b"}},
			ProviderOptions: options,
		}
		if change != nil {
			change(r)
		}
		return r
	}
	b := box{tenant: "t", id: "a"}
	base := specHash(nil, b, "default", req(nil))
	for range 20 {
		if specHash(nil, b, "default", req(nil)) != base {
			t.Fatal("the hash changes by itself")
		}
	}
	for name, change := range map[string]func(*sandboxv1.CreateSandboxRequest){
		"labels": func(r *sandboxv1.CreateSandboxRequest) { r.Labels = map[string]string{"x": "y"} },
		"ttl":    func(r *sandboxv1.CreateSandboxRequest) { r.Ttl, r.IdleTtl = wire.Duration(1), wire.Duration(2) },
	} {
		if specHash(nil, b, "default", req(change)) != base {
			t.Errorf("%s changed the hash", name)
		}
	}
	for name, change := range map[string]func(*sandboxv1.CreateSandboxRequest){
		"env value": func(r *sandboxv1.CreateSandboxRequest) { r.Spec.Env["A"] = "3" },
		"env key":   func(r *sandboxv1.CreateSandboxRequest) { r.Spec.Env["C"] = "" },
		"image":     func(r *sandboxv1.CreateSandboxRequest) { r.Spec.Image = "j" },
		"command":   func(r *sandboxv1.CreateSandboxRequest) { r.Spec.Command = []string{"ab"} },
		"options":   func(r *sandboxv1.CreateSandboxRequest) { r.ProviderOptions = nil },
		"network":   func(r *sandboxv1.CreateSandboxRequest) { r.Spec.Network = &sandboxv1.Network{Mode: 3} },
	} {
		if specHash(nil, b, "default", req(change)) == base {
			t.Errorf("%s did not change the hash", name)
		}
	}
	if specHash(nil, box{tenant: "t", id: "b"}, "default", req(nil)) == base {
		t.Error("environment values are not salted per sandbox")
	}
	if specHash([]byte("s"), b, "default", req(nil)) == base {
		t.Error("the server's secret does not count")
	}
	// A change here makes running servers take existing sandboxes for others.
	const golden = "d3ff9797be7d2ade25d23ad67b1772d19319c738"
	if base != golden {
		t.Errorf("the hash of a given request is %s, was %s", base, golden)
	}
}
