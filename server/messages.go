package server

import (
	"encoding/binary"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sandgate/sandgate/server/admission"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/streaming"
)

// messageReader has the methods by which gRPC reads from a stream. They are not part of its
// API.
type messageReader interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
}

// contentHead is what comes before the content in a message with as much as possible.
var contentHead = protowire.SizeTag(agentconn.FieldChunk) + protowire.SizeBytes(streaming.LargeChunk) - streaming.LargeChunk

// maxQuestion is the largest message of a call to a service other than SandboxService:
// gRPC's own reflection.
const maxQuestion = 4 << 10

// next reads the next message of a call on which the caller sends many. A message that is
// too large is rejected by its length, before any of it is read. gRPC has one limit for
// all calls, so with RecvMsg a chunk could take as much memory as a whole WriteFile.
func (e *callStream) next(fr *agentconn.Frame) error {
	stream, ok := grpc.ServerTransportStreamFromContext(e.Context()).(messageReader)
	if !ok || call.Of(e.Context()).InProcess {
		return e.s.received(e.ServerStream.RecvMsg(fr))
	}
	var head [5]byte // whether the message is compressed, and its length
	if err := stream.ReadMessageHeader(head[:]); err != nil {
		return e.s.received(err)
	}
	if head[0] != 0 {
		return malformed(errors.New("a message that is marked as compressed"))
	}
	n, limit := binary.BigEndian.Uint32(head[1:]), streaming.LargeChunk
	if !admission.HasPermission(call.Of(e.Context()).Method) {
		limit = maxQuestion
	}
	if int64(n) > int64(limit+contentHead) {
		return tooLarge(limit, "send content in more messages")
	}
	data, err := stream.Read(int(n))
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // it ended before the message's first byte
	}
	fr.Data = data
	return e.s.received(err)
}
