package agent

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// codec is protobuf, except that large payloads are passed by reference: output
// straight from the command's log, and chunks of files.
type codec struct{}

// bufferMarshaler is a message that encodes itself and hands over its buffers.
type bufferMarshaler interface{ MarshalBuffers() mem.BufferSlice }

// bufferUnmarshaler is a message that may decode itself and keep references to the
// buffers. If it returns false, it is decoded as protobuf.
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
	return protobuf.Marshal(v) //nolint:wrapcheck // gRPC reports the codec's error
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(bufferUnmarshaler); ok && m.UnmarshalBuffers(data) {
		return nil
	}
	return protobuf.Unmarshal(data, v) //nolint:wrapcheck // gRPC reports the codec's error
}
