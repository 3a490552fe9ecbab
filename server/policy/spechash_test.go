package policy

import (
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/wire"
)

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
	base := specHash(nil, "t", "a", "default", req(nil))
	for range 20 {
		if specHash(nil, "t", "a", "default", req(nil)) != base {
			t.Fatal("the hash changes by itself")
		}
	}
	for name, change := range map[string]func(*sandboxv1.CreateSandboxRequest){
		"labels": func(r *sandboxv1.CreateSandboxRequest) { r.Labels = map[string]string{"x": "y"} },
		"ttl":    func(r *sandboxv1.CreateSandboxRequest) { r.Ttl, r.IdleTtl = wire.Duration(1), wire.Duration(2) },
	} {
		if specHash(nil, "t", "a", "default", req(change)) != base {
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
		if specHash(nil, "t", "a", "default", req(change)) == base {
			t.Errorf("%s did not change the hash", name)
		}
	}
	if specHash(nil, "t", "b", "default", req(nil)) == base {
		t.Error("environment values are not salted per sandbox")
	}
	if specHash([]byte("s"), "t", "a", "default", req(nil)) == base {
		t.Error("the server's secret does not count")
	}
	// A change here makes running servers take existing sandboxes for others.
	const golden = "d3ff9797be7d2ade25d23ad67b1772d19319c738"
	if base != golden {
		t.Errorf("the hash of a given request is %s, was %s", base, golden)
	}
}
