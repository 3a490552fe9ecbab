package payload

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// A message is a payload exactly if protobuf decodes it to data alone, whatever the
// buffers that it arrives in.
func FuzzParse(f *testing.F) {
	for _, m := range []*sandboxv1.ForwardRequest{
		{Payload: &sandboxv1.ForwardRequest_Data{Data: []byte("data")}},
		{Payload: &sandboxv1.ForwardRequest_Data{}},
		{Payload: &sandboxv1.ForwardRequest_Eof{Eof: &sandboxv1.ForwardEof{}}},
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
		p, ok := Parse(mem.BufferSlice{mem.SliceBuffer(raw[:at]), mem.SliceBuffer(raw[at:])})
		if !ok {
			return
		}
		defer p.Release()
		var m sandboxv1.ForwardRequest
		if err := proto.Unmarshal(raw, &m); err != nil || len(m.ProtoReflect().GetUnknown()) > 0 {
			t.Fatalf("%x is a payload, but protobuf decodes it to %v, %v", raw, &m, err)
		}
		if got := bytes.Join(p.Parts, nil); len(got) == 0 || len(got) != p.Size || !bytes.Equal(got, m.GetData()) {
			t.Fatalf("%x is %d bytes %x, want %x", raw, p.Size, got, m.GetData())
		}
	})
}

func TestEncodeAndTruncate(t *testing.T) {
	b := bytes.Repeat([]byte("0123456789"), 20)
	p, ok := Parse(Encode(&b, mem.NopBufferPool{}))
	if !ok || p.Size != 200 {
		t.Fatalf("%+v, %v", p, ok)
	}
	for _, n := range []int{200, 77, 1} {
		p.Truncate(n)
		if got := bytes.Join(p.Parts, nil); p.Size != n || !bytes.Equal(got, b[:n]) {
			t.Errorf("the first %d bytes are %q", n, got)
		}
	}
	p.Release()
	p = Plain(b)
	if p.Release(); p.Size != 0 {
		t.Error("a released payload has a size")
	}
}
