package files

import (
	"google.golang.org/grpc/mem"

	"github.com/sandgate/sandgate/agent/payload"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// With payload.Codec, the content of files is not copied: these messages encode and
// decode themselves. Other codecs use the generated messages.

// incoming is an UploadRequest whose chunk stays in the received buffers.
type incoming struct {
	*sandboxv1.UploadRequest
	payload.Payload
}

// outgoing is a DownloadResponse whose chunk is a buffer of getChunk. MarshalBuffers hands
// the buffer over.
type outgoing struct {
	*sandboxv1.DownloadResponse
	chunk []byte
}

func newOutgoing(b []byte) *outgoing {
	return &outgoing{
		DownloadResponse: &sandboxv1.DownloadResponse{Payload: &sandboxv1.DownloadResponse_Chunk{Chunk: b}}, chunk: b,
	}
}

// MarshalBuffers encodes the message and gives the chunk to gRPC.
func (m *outgoing) MarshalBuffers() mem.BufferSlice { return payload.Encode(&m.chunk, chunkPool{}) }

// chunkPool returns buffers to getChunk when gRPC no longer needs them.
type chunkPool struct{}

var _ mem.BufferPool = chunkPool{}

func (chunkPool) Get(int) *[]byte {
	b := getChunk()
	return &b
}

func (chunkPool) Put(b *[]byte) {
	if cap(*b) >= streaming.LargeChunk {
		putChunk((*b)[:0])
	}
}
