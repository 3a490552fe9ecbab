package payload

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Codec is protobuf, except that messages which encode or decode themselves pass their
// bytes by reference: output straight from the command's log, chunks of files, and what
// connections carry.
type Codec struct{}

// bufferMarshaler is a message that encodes itself and hands over its buffers.
type bufferMarshaler interface{ MarshalBuffers() mem.BufferSlice }

// bufferUnmarshaler is a message that may decode itself and keep references to the
// buffers. If it returns false, it is decoded as protobuf.
type bufferUnmarshaler interface {
	UnmarshalBuffers(data mem.BufferSlice) bool
}

var _ encoding.CodecV2 = Codec{}

var protobuf = encoding.GetCodecV2(proto.Name)

// Name implements encoding.CodecV2.
func (Codec) Name() string { return proto.Name }

// Marshal implements encoding.CodecV2.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(bufferMarshaler); ok {
		return m.MarshalBuffers(), nil
	}
	return protobuf.Marshal(v) //nolint:wrapcheck // gRPC reports the codec's error
}

// Unmarshal implements encoding.CodecV2.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(bufferUnmarshaler); ok && m.UnmarshalBuffers(data) {
		return nil
	}
	return protobuf.Unmarshal(data, v) //nolint:wrapcheck // gRPC reports the codec's error
}
