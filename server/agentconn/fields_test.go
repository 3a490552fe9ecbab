package agentconn

import (
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"

	"bytes"
	"errors"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
)

// populated counts what decoding m has allocated: fields, elements and entries,
// those of its messages included.
func populated(m protoreflect.Message) int {
	n := 0
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				n++
				if f.MapValue().Message() != nil {
					n += populated(v.Message())
				}
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				n++
				if f.Message() != nil {
					n += populated(v.List().Get(i).Message())
				}
			}
		default:
			n++
			if f.Message() != nil {
				n += populated(v.Message())
			}
		}
		return true
	})
	return n
}

// split cuts a message into buffers, since gRPC's are not contiguous.
func split(raw []byte, size int) mem.BufferSlice {
	var s mem.BufferSlice
	for len(raw) > 0 {
		n := min(size, len(raw))
		s = append(s, mem.SliceBuffer(raw[:n]))
		raw = raw[n:]
	}
	return s
}

func create(t testing.TB) []byte {
	t.Helper()
	options, err := structpb.NewStruct(map[string]any{"a": []any{1.0, "x", map[string]any{"b": nil}}})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := proto.Marshal(&sandboxv1.CreateSandboxRequest{SandboxId: "a", Labels: map[string]string{"k": "v"},
		Spec: &sandboxv1.SandboxSpec{Env: map[string]string{"A": "b"}, Command: []string{"x", "y"},
			Network: &sandboxv1.Network{Allow: []*sandboxv1.EgressRule{{Ports: []uint32{1, 2, 300}}}}},
		ProviderOptions: options})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// Whatever decodes has no more fields than were counted before.
func FuzzFields(f *testing.F) {
	f.Add(create(f), 3, true)
	f.Add([]byte{0x0b, 0x08, 0x01, 0x0c, 0x0a, 0x00}, 1, false)
	f.Add(bytes.Repeat([]byte{0x0a, 0x00}, 100), 7, false)
	f.Fuzz(func(t *testing.T, raw []byte, size int, request bool) {
		var m proto.Message = &sandboxv1.ListProcessesResponse{}
		if request {
			m = &sandboxv1.CreateSandboxRequest{}
		}
		n, err := countFields(split(raw, max(size, 1)), m.ProtoReflect().Descriptor())
		decoded := proto.Unmarshal(raw, m)
		if err != nil && !errors.Is(err, ErrTooManyFields) && decoded == nil {
			t.Fatalf("decodes, but the count says %v", err)
		}
		if err == nil && decoded == nil && populated(m.ProtoReflect()) > n {
			t.Fatalf("counted %d, decoded %d", n, populated(m.ProtoReflect()))
		}
	})
}
