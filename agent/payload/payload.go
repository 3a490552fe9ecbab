// Package payload carries the bytes of a stream's messages without copying them.
// With Codec, a message whose only field is its bytes stays in the
// buffers that gRPC received, and is sent from the buffer that was read into.
package payload

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field is the number of the bytes field: `chunk` of an upload and a download, and
// `data` of a forward and of a connection's bytes.
const Field = 2

// Payload is the bytes of one message, in slices. Its owner must release it once.
type Payload struct {
	Parts [][]byte
	Size  int
	held  mem.BufferSlice
}

// Plain returns bytes that need no release.
func Plain(b []byte) Payload { return Payload{Parts: [][]byte{b}, Size: len(b)} }

// Parse returns the payload of an encoded message that has only the field Field. It
// returns false for any other message, and for one without bytes. The payload keeps
// its own references to data.
func Parse(data mem.BufferSlice) (Payload, bool) {
	if len(data) == 0 {
		return Payload{}, false
	}
	first := data[0].ReadOnlyData()
	num, typ, n := protowire.ConsumeTag(first)
	if n < 0 || num != Field || typ != protowire.BytesType {
		return Payload{}, false
	}
	size, k := protowire.ConsumeVarint(first[n:])
	total := data.Len()
	if k < 0 || size == 0 || size != uint64(total-n-k) {
		return Payload{}, false
	}
	data.Ref()
	p := Payload{Size: int(size), Parts: make([][]byte, 0, len(data)), held: data}
	for i, b := range data {
		part := b.ReadOnlyData()
		if i == 0 {
			part = part[n+k:]
		}
		if len(part) > 0 {
			p.Parts = append(p.Parts, part)
		}
	}
	return p, true
}

// UnmarshalBuffers is Parse for [Codec], in a message that embeds a Payload: any other
// message is decoded as protobuf.
func (p *Payload) UnmarshalBuffers(data mem.BufferSlice) (ok bool) {
	*p, ok = Parse(data)
	return ok
}

// Release gives the buffers back to gRPC.
func (p *Payload) Release() {
	p.held.Free()
	*p = Payload{}
}

// Truncate keeps the first n bytes.
func (p *Payload) Truncate(n int) {
	p.Size = n
	for i, part := range p.Parts {
		if n <= len(part) {
			p.Parts[i] = part[:n]
			p.Parts = p.Parts[:i+1]
			return
		}
		n -= len(part)
	}
}

// Encode returns a message whose only field is b. pool.Put receives the buffer when
// gRPC no longer needs it.
func Encode(b *[]byte, pool mem.BufferPool) mem.BufferSlice {
	head := protowire.AppendTag(make([]byte, 0, 8), Field, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(len(*b)))
	return mem.BufferSlice{mem.SliceBuffer(head), mem.NewBuffer(b, pool)}
}
