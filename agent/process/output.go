package process

import (
	"encoding/binary"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sandgate/sandgate/streaming"
)

// output is an ExecuteResponse or AttachResponse with an Output event: both have
// it under the same field number. MarshalBuffers hands over the chunk.
type output struct{ chunk streaming.Chunk }

// Field numbers of ExecuteResponse.output and of Output.
const (
	fieldOutput   = 2
	fieldStream   = 1
	fieldPosition = 2
	fieldData     = 3
)

// copyLimit is the payload size up to which a copy is cheaper than a reference.
const copyLimit = 4 << 10

// MarshalBuffers encodes the message for payload.Codec.
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

// payload releases a chunk when gRPC no longer needs it.
type payload struct {
	chunk streaming.Chunk
	data  []byte
}

var _ mem.BufferPool = (*payload)(nil)

func (*payload) Get(int) *[]byte { panic("process: a payload is no source of buffers") }

func (p *payload) Put(*[]byte) { p.chunk.Release() }

// wireStream maps streams of a log to sandbox.v1.Stream.
func wireStream(s streaming.Stream) uint64 {
	if s == streaming.Stderr {
		return 2
	}
	return 1
}
