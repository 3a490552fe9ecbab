package agent

import (
	"encoding/binary"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sandgate/sandgate/streaming"
)

// codec is protobuf. What is large is encoded and decoded by hand, with the
// payload by reference: output straight from the command's log, and chunks of
// files.
type codec struct{}

// bufferMarshaler is a message that gives its buffers away.
type bufferMarshaler interface{ MarshalBuffers() mem.BufferSlice }

// bufferUnmarshaler is a message that may take references to the buffers in
// which it came, and reports whether it did; otherwise it is decoded as usual.
type bufferUnmarshaler interface {
	UnmarshalBuffers(data mem.BufferSlice) bool
}

var _ encoding.CodecV2 = codec{}

var protobuf = encoding.GetCodecV2(proto.Name)

func (codec) Name() string { return proto.Name }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(bufferMarshaler); ok {
		return m.MarshalBuffers(), nil
	}
	return protobuf.Marshal(v) //nolint:wrapcheck // a codec's error goes to the caller as it is
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(bufferUnmarshaler); ok && m.UnmarshalBuffers(data) {
		return nil
	}
	return protobuf.Unmarshal(data, v) //nolint:wrapcheck // a codec's error goes to the caller as it is
}

// output is ExecuteResponse or AttachResponse with an Output event: both have
// it under the same number. Marshalling it gives the chunk away.
type output struct{ chunk streaming.Chunk }

// Field numbers of ExecuteResponse.output and of Output.
const (
	fieldOutput   = 2
	fieldStream   = 1
	fieldPosition = 2
	fieldData     = 3
)

// copyLimit is the payload below which a copy is cheaper than a reference.
const copyLimit = 4 << 10

// MarshalBuffers implements bufferMarshaler.
func (o *output) MarshalBuffers() mem.BufferSlice {
	c := &o.chunk
	var inner [32]byte
	in := protowire.AppendTag(inner[:0], fieldStream, protowire.VarintType)
	in = protowire.AppendVarint(in, wireStream(c.Stream))
	if c.Position != 0 {
		in = protowire.AppendTag(in, fieldPosition, protowire.VarintType)
		in = protowire.AppendVarint(in, uint64(c.Position))
	}
	in = protowire.AppendTag(in, fieldData, protowire.BytesType)
	in = binary.AppendUvarint(in, uint64(len(c.Data)))

	small := len(c.Data) <= copyLimit
	size := 12 + len(in)
	if small {
		size += len(c.Data)
	}
	head := protowire.AppendTag(make([]byte, 0, size), fieldOutput, protowire.BytesType)
	head = binary.AppendUvarint(head, uint64(len(in)+len(c.Data)))
	head = append(head, in...)
	if small {
		head = append(head, c.Data...)
		c.Release()
		return mem.BufferSlice{mem.SliceBuffer(head)}
	}
	held := &payload{chunk: *c, data: c.Data}
	return mem.BufferSlice{mem.SliceBuffer(head), mem.NewBuffer(&held.data, held)}
}

// payload gives a chunk back when gRPC is done with it.
type payload struct {
	chunk streaming.Chunk
	data  []byte
}

var _ mem.BufferPool = (*payload)(nil)

func (*payload) Get(int) *[]byte { panic("agent: a payload is no source of buffers") }

func (p *payload) Put(*[]byte) { p.chunk.Release() }

// wireStream maps streams of a log to sandbox.v1.Stream.
func wireStream(s streaming.Stream) uint64 {
	if s == streaming.Stderr {
		return 2
	}
	return 1
}
