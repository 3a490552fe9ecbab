package agentconn

import (
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Frame is an encoded message that is forwarded without being decoded. The owner
// of one with data must either send it, which gives the data to gRPC, or free it.
type Frame struct{ Data mem.BufferSlice }

// Free releases the data.
func (f *Frame) Free() {
	f.Data.Free()
	f.Data = nil
}

// Fields returns the number of fields of the message that is to be decoded into m. It
// returns ErrTooManyFields beyond MaxFields.
func (f *Frame) Fields(m any) (int, error) {
	return countFields(f.Data, m.(proto.Message).ProtoReflect().Descriptor())
}

// Codec is gRPC's protobuf codec. It also takes Frames, and rejects messages with
// too many fields. It has the same name, so peers see no difference.
type Codec struct{ encoding.CodecV2 }

var _ encoding.CodecV2 = Codec{}

// NewCodec returns a Codec.
func NewCodec() Codec { return Codec{encoding.GetCodecV2(grpcproto.Name)} }

// Marshal implements encoding.CodecV2.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*Frame); ok {
		data := f.Data
		f.Data = nil
		return data, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*Frame); ok {
		data.Ref()
		f.Data = data
		return nil
	}
	if m, ok := v.(proto.Message); ok {
		if _, err := countFields(data, m.ProtoReflect().Descriptor()); err != nil {
			return err
		}
	}
	return c.CodecV2.Unmarshal(data, v)
}
