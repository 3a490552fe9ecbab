package server

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/structpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
)

func TestFieldsAreBounded(t *testing.T) {
	h := newHarness(t, nil)
	values := make([]*structpb.Value, agentconn.MaxFields)
	for i := range values {
		values[i] = &structpb.Value{}
	}
	deep := structpb.NewNullValue()
	for range 200 {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	for name, v := range map[string]*structpb.Value{
		"many": structpb.NewListValue(&structpb.ListValue{Values: values}), "deep": deep,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a",
				ProviderOptions: &structpb.Struct{Fields: map[string]*structpb.Value{"a": v}}})
			wantReason(t, err, "MESSAGE_TOO_LARGE")
		})
	}
}

// A reply that is small on the wire and large in memory is not decoded.
func TestAgentRepliesAreBounded(t *testing.T) {
	entry := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), nil)
	for name, raw := range map[string][]byte{
		"many entries": func() []byte {
			list := bytes.Repeat(entry, agentconn.MaxFields+1)
			return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), list)
		}(),
		"many bytes": protowire.AppendBytes(protowire.AppendTag(nil, 15, protowire.BytesType), make([]byte, agentconn.MaxReply)),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil)
			h.provider.script.raw = raw
			h.create("a")
			var err error
			grown := peak(func() {
				_, err = h.client.ListProcesses(t.Context(), &sandboxv1.ListProcessesRequest{SandboxId: "a"})
			})
			if code, got := reason(t, err); got != "AGENT_MISBEHAVED" || code != codes.DataLoss {
				t.Fatalf("got %v", err)
			}
			if grown > 32<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			}
			if n := h.sandbox("a").dials.Load(); n != 1 {
				t.Errorf("%d dials", n)
			}
		})
	}
}
