package protocol_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// The policies of server, template, sandbox and call fit, each at its bound.
func TestCallContextHoldsFourPolicies(t *testing.T) {
	policy := &sandboxv1.AccessPolicy{RootDir: "/" + strings.Repeat("x", protocol.MaxPolicy-5)}
	if n := proto.Size(policy); n != protocol.MaxPolicy {
		t.Fatalf("the policy has %d bytes", n)
	}
	want := &agentv1.CallContext{
		Confinement: &agentv1.Confinement{Policies: []*sandboxv1.AccessPolicy{policy, policy, policy, policy}},
		Limits:      &agentv1.Limits{MaxFileBytes: 1 << 40},
	}
	ctx, err := protocol.WithCallContext(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	got, err := protocol.CallContext(metadata.NewIncomingContext(t.Context(), md))
	if err != nil || !proto.Equal(got, want) {
		t.Errorf("%v", err)
	}
}

// FuzzCallContext: a call with metadata other than one encoded CallContext is
// rejected, and never taken for an unconfined one.
func FuzzCallContext(f *testing.F) {
	f.Add("", "", 1)
	f.Add("", "", 0)
	f.Add("\x0a\x07\x0a\x05\x0a\x03/ws", "", 1)
	f.Add("\x0a\x07\x0a\x05\x0a\x03/ws", "\x0a\x00", 2)
	f.Add("\x0a\x07\x0a", "", 1)
	f.Add("\x12\x02\x30\x07", "", 1)
	f.Add(strings.Repeat("\x0a\x00", protocol.MaxCallContext), "", 1)
	f.Fuzz(func(t *testing.T, first, second string, count int) {
		values := []string{first, second}[:min(max(count, 0), 2)]
		ctx := metadata.NewIncomingContext(context.Background(), metadata.MD{protocol.CallContextKey: values})
		got, err := protocol.CallContext(ctx)
		want := new(agentv1.CallContext)
		valid := len(values) == 1 && len(first) <= protocol.MaxCallContext && proto.Unmarshal([]byte(first), want) == nil
		if valid != (err == nil) || valid != (got != nil) || valid && !proto.Equal(got, want) {
			t.Errorf("%d values, %q: %v, %v", len(values), first, got, err)
		}
	})
}

func BenchmarkCallContext(b *testing.B) {
	c := &agentv1.CallContext{
		Confinement: &agentv1.Confinement{Policies: []*sandboxv1.AccessPolicy{
			{RootDir: "/workspace", ReadDenyPrefixes: []string{"/workspace/.git", "/workspace/secrets"}},
		}},
		Limits: &agentv1.Limits{OutputLogBytes: 64 << 20, MaxFileBytes: 1 << 30},
	}
	for b.Loop() {
		ctx, err := protocol.WithCallContext(b.Context(), c)
		if err != nil {
			b.Fatal(err)
		}
		md, _ := metadata.FromOutgoingContext(ctx)
		if _, err := protocol.CallContext(metadata.NewIncomingContext(b.Context(), md)); err != nil {
			b.Fatal(err)
		}
	}
}
