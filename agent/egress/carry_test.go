package egress

import (
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/sandgate/sandgate/agent/payload"
)

// received is a stream on which one message comes.
type received struct {
	carryStream
	message mem.BufferSlice
}

func (r received) RecvMsg(m any) error { return payload.Codec{}.Unmarshal(r.message, m) }

// The bytes of a connection are those that gRPC received.
func TestReceivedBytesAreNotCopied(t *testing.T) {
	data := make([]byte, 32_000)
	m := &messages{stream: received{message: payload.Encode(&data, mem.NopBufferPool{})}}
	parts, err := m.Receive()
	if err != nil || len(parts) != 1 || &parts[0][0] != &data[0] || len(parts[0]) != len(data) {
		t.Errorf("%d parts, %v", len(parts), err)
	}
}
