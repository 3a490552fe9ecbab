package agentconn

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// What passes undecoded is what it says: data of the counted size, or eof, and nothing
// after eof.
func FuzzDirection(f *testing.F) {
	for _, m := range []*sandboxv1.ForwardRequest{
		{Payload: &sandboxv1.ForwardRequest_Data{Data: []byte("data")}},
		{Payload: &sandboxv1.ForwardRequest_Data{Data: make([]byte, streaming.MaxChunk+1)}},
		{Payload: &sandboxv1.ForwardRequest_Data{}},
		{Payload: &sandboxv1.ForwardRequest_Eof{Eof: &sandboxv1.ForwardEof{}}},
		{Payload: &sandboxv1.ForwardRequest_Start{Start: &sandboxv1.ForwardStart{SandboxId: "a", Port: 1}}},
		{},
	} {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, uint8(1))
	}
	f.Fuzz(func(t *testing.T, raw []byte, cut uint8) {
		at := min(int(cut), len(raw))
		frame := Frame{mem.BufferSlice{mem.SliceBuffer(raw[:at]), mem.SliceBuffer(raw[at:])}}
		var d direction
		n, err := d.check(&frame)
		if err != nil {
			if d.ended {
				t.Fatal("a rejected message ends the direction")
			}
			return
		}
		var m sandboxv1.ForwardRequest
		if err := proto.Unmarshal(raw, &m); err != nil || len(m.ProtoReflect().GetUnknown()) > 0 {
			t.Fatalf("%x passed, but protobuf decodes it to %v, %v", raw, &m, err)
		}
		if len(m.GetData()) != n || d.ended != (m.GetEof() != nil) || d.ended != (n == 0) || n > streaming.MaxChunk {
			t.Fatalf("%x passed as %d bytes, ended %v: %v", raw, n, d.ended, &m)
		}
		content, err := frame.Relayed()
		if got := bytes.Join(content.Parts(), nil); err != nil || !bytes.Equal(got, m.GetData()) {
			t.Fatalf("%x has the parts %x, %v", raw, got, err)
		}
		if _, err := d.check(&frame); (err != nil) != d.ended {
			t.Fatalf("the same message again, ended %v: %v", d.ended, err)
		}
	})
}
