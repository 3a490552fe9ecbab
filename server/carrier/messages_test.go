package carrier

import (
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/fault"
)

// received is a stream on which one message comes.
type received struct {
	grpc.BidiStreamingClient[agentv1.CarryEgressRequest, agentv1.CarryEgressResponse]
	message mem.BufferSlice
}

func (r received) RecvMsg(m any) error { return agentconn.NewCodec().Unmarshal(r.message, m) }

// The bytes of a connection are those that gRPC received.
func TestReceivedBytesAreNotCopied(t *testing.T) {
	data := make([]byte, 32_000)
	head := protowire.AppendVarint(protowire.AppendTag(nil, agentconn.FieldData, protowire.BytesType), uint64(len(data)))
	m := &messages{stream: received{message: mem.BufferSlice{mem.SliceBuffer(head), mem.SliceBuffer(data)}}}
	parts, err := m.Receive()
	if err != nil || len(parts) != 1 || &parts[0][0] != &data[0] || len(parts[0]) != len(data) {
		t.Errorf("%d parts, %v", len(parts), err)
	}
}

// An agent that sends anything but data and eof breaks the protocol.
func TestReceivedMessagesAreDataOrEOF(t *testing.T) {
	eof := protowire.AppendVarint(protowire.AppendTag(nil, agentconn.FieldEOF, protowire.BytesType), 0)
	m := &messages{stream: received{message: mem.BufferSlice{mem.SliceBuffer(eof)}}}
	if _, err := m.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("eof: %v", err)
	}
	for name, message := range map[string][]byte{
		"nothing":     {},
		"no data":     {agentconn.FieldData<<3 | 2, 0},
		"other field": {9<<3 | 2, 1, 'x'},
		"two fields":  append(append([]byte{}, eof...), eof...),
	} {
		m := &messages{stream: received{message: mem.BufferSlice{mem.SliceBuffer(message)}}}
		if _, err := m.Receive(); !fault.IsMisbehaved(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
