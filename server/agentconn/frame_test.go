package agentconn

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// FuzzFrame holds the parser to the real decoder: what it accepts means the
// same to both, wherever the buffers are split.
func FuzzFrame(f *testing.F) {
	for _, m := range []proto.Message{
		outputEvent(0, "x"), outputEvent(1<<40, "hello"),
		&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Gap{Gap: &sandboxv1.Gap{Start: 1, End: 2}}},
		&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Chunk{Chunk: []byte("abc")}},
	} {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, uint8(1))
	}
	f.Add([]byte{0x12, 0x08, 0x08, 0x01, 0x1a, 0x01, 'x', 0x1a, 0x01, 'y'}, uint8(3))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, uint8(2))
	f.Fuzz(func(t *testing.T, raw []byte, split uint8) {
		var data mem.BufferSlice
		for rest := raw; len(rest) > 0; {
			n := min(int(split%16)+1, len(rest))
			data = append(data, mem.SliceBuffer(rest[:n]))
			rest = rest[n:]
		}
		field, content, err := (&Frame{Data: data}).Parse()
		if err != nil {
			return
		}
		if field != FieldOutput {
			return
		}
		if n, err := content.Chunk(); err == nil {
			var m sandboxv1.UploadRequest
			if err := proto.Unmarshal(raw, &m); err != nil || len(m.GetChunk()) != n || len(m.ProtoReflect().GetUnknown()) > 0 {
				t.Fatalf("accepted a chunk of %d bytes; decoder: %v %v", n, &m, err)
			}
		}
		o, err := content.Output()
		if err != nil {
			return
		}
		var m sandboxv1.ExecuteResponse
		if err := proto.Unmarshal(raw, &m); err != nil {
			t.Fatalf("accepted what the decoder refuses: %v", err)
		}
		got := m.GetOutput()
		if got.GetPosition() != o.Position || len(got.GetData()) != o.Size || got.GetStream() != o.Stream ||
			len(m.ProtoReflect().GetUnknown())+len(got.ProtoReflect().GetUnknown()) > 0 {
			t.Fatalf("parser %+v, decoder %v", o, got)
		}
		if o.Size == 0 || o.Size > streaming.MaxChunk || o.Position < 0 {
			t.Fatalf("accepted %+v", o)
		}
	})
}

// execRelay decodes the events of an Attach as those of an Execute.
func TestEventsOfExecuteAndAttachHaveTheSameFields(t *testing.T) {
	a, b := (&sandboxv1.ExecuteResponse{}).ProtoReflect().Descriptor(), (&sandboxv1.AttachResponse{}).ProtoReflect().Descriptor()
	if a.Fields().Len() != b.Fields().Len() {
		t.Errorf("%d fields and %d", a.Fields().Len(), b.Fields().Len())
	}
	for i := range a.Fields().Len() {
		want := a.Fields().Get(i)
		got := b.Fields().ByNumber(want.Number())
		if got == nil || got.Name() != want.Name() || got.Message() != want.Message() {
			t.Errorf("field %s is %v", want.Name(), got)
		}
	}
}

func TestCodecPassesFramesOn(t *testing.T) {
	c := NewCodec()
	raw, err := c.Marshal(outputEvent(7, "hello"))
	if err != nil {
		t.Fatal(err)
	}
	var fr Frame
	if err := c.Unmarshal(raw, &fr); err != nil {
		t.Fatal(err)
	}
	again, err := c.Marshal(&fr)
	if err != nil || fr.Data != nil {
		t.Fatalf("%v %v", err, fr.Data)
	}
	if !bytes.Equal(again.Materialize(), raw.Materialize()) {
		t.Fatal("the bytes changed")
	}
}

func outputEvent(position int64, data string) *sandboxv1.ExecuteResponse {
	return &sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Output{Output: &sandboxv1.Output{
		Stream: sandboxv1.Stream_STREAM_STDOUT, Position: position, Data: []byte(data),
	}}}
}
