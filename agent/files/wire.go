package files

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	"github.com/sandgate/sandgate/streaming"
)

// With the agent's codec, the content of files is not copied: these messages encode and
// decode themselves. Other codecs use the generated messages.

// Field numbers of a chunk in UploadRequest and DownloadResponse.
const fieldChunk = 2

// incoming is an UploadRequest whose chunk stays in the received buffers.
type incoming struct {
	*agentv1.UploadRequest
	chunk content
}

// UnmarshalBuffers decodes a message that contains only a chunk. It returns false for any
// other, which must be decoded as protobuf. It keeps its own references to data.
func (m *incoming) UnmarshalBuffers(data mem.BufferSlice) bool {
	if len(data) == 0 {
		return false
	}
	first := data[0].ReadOnlyData()
	num, typ, n := protowire.ConsumeTag(first)
	if n < 0 || num != fieldChunk || typ != protowire.BytesType {
		return false
	}
	size, k := protowire.ConsumeVarint(first[n:])
	total := data.Len()
	if k < 0 || size == 0 || size != uint64(total-n-k) {
		return false
	}
	data.Ref()
	m.chunk = content{size: int(size), parts: make([][]byte, 0, len(data)), held: data}
	for i, b := range data {
		part := b.ReadOnlyData()
		if i == 0 {
			part = part[n+k:]
		}
		if len(part) > 0 {
			m.chunk.parts = append(m.chunk.parts, part)
		}
	}
	return true
}

// content is one chunk in slices. Its owner must release it once.
type content struct {
	parts [][]byte
	size  int
	held  mem.BufferSlice
}

// plain returns bytes that need no release.
func plain(b []byte) content { return content{parts: [][]byte{b}, size: len(b)} }

func (c *content) release() {
	c.held.Free()
	*c = content{}
}

// cut keeps the first n bytes.
func (c *content) cut(n int) {
	c.size = n
	for i, p := range c.parts {
		if n <= len(p) {
			c.parts[i] = p[:n]
			c.parts = c.parts[:i+1]
			return
		}
		n -= len(p)
	}
}

// outgoing is a DownloadResponse whose chunk is a buffer of getChunk. MarshalBuffers hands
// the buffer over.
type outgoing struct {
	*agentv1.DownloadResponse
	chunk []byte
}

func newOutgoing(b []byte) *outgoing {
	return &outgoing{
		DownloadResponse: &agentv1.DownloadResponse{Payload: &agentv1.DownloadResponse_Chunk{Chunk: b}}, chunk: b,
	}
}

// MarshalBuffers encodes the message as a header and the chunk itself.
func (m *outgoing) MarshalBuffers() mem.BufferSlice {
	head := protowire.AppendTag(make([]byte, 0, 8), fieldChunk, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(len(m.chunk)))
	return mem.BufferSlice{mem.SliceBuffer(head), mem.NewBuffer(&m.chunk, chunkPool{})}
}

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
