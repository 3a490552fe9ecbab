package streaming

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// headerLen is the length of the header in front of every run in a block.
const headerLen = 4

// maxRun is the longest run that a header can describe.
const maxRun = 1<<30 - 1

// block is a piece of the log: runs of bytes, each behind a header that names
// its stream and length. The same bytes are what the spill file holds, so the
// order of the streams survives without an index per record, and the cost of
// many tiny records is bounded by the size of the block.
//
// A block in memory is reference counted: the log holds one reference, every
// chunk handed to a reader another. The bytes of a run never change once they
// are published; only the last header of the last block grows, under Log.mu.
type block struct {
	refs atomic.Int32
	buf  []byte // nil once the block lives in the spill file only
	used int    // bytes of buf in use, headers included
	last int    // offset of the last run's header, -1 without runs
	base int64  // position of the first byte
	end  int64  // position after the last byte
	disk int64  // logical offset in the spill file, -1 while in memory
	gone bool   // evicted
}

func putHeader(p []byte, s Stream, n int) {
	binary.LittleEndian.PutUint32(p, uint32(s)<<30|uint32(n))
}

func getHeader(p []byte) (Stream, int) {
	v := binary.LittleEndian.Uint32(p)
	return Stream(v >> 30), int(v & maxRun)
}

// The size classes of blocks. A command that prints little costs the smallest.
const (
	classSmall  = 4 << 10
	classMedium = 32 << 10
	classLarge  = LargeChunk
)

var pools = [...]struct {
	size int
	pool sync.Pool
}{{size: classSmall}, {size: classMedium}, {size: classLarge}}

func newBuffer(size int) []byte {
	for i := range pools {
		if pools[i].size == size {
			if p, ok := pools[i].pool.Get().(*[]byte); ok {
				return *p
			}
		}
	}
	return make([]byte, size)
}

func freeBuffer(b []byte) {
	for i := range pools {
		if pools[i].size == cap(b) {
			b = b[:cap(b)]
			pools[i].pool.Put(&b)
			return
		}
	}
}

func newBlock(size int, base int64) *block {
	b := &block{buf: newBuffer(size), last: -1, base: base, end: base, disk: -1}
	b.refs.Store(1)
	return b
}

// release drops one reference to the bytes. The last one returns the buffer,
// so nobody may touch buf afterwards.
func release(refs *atomic.Int32, buf []byte) {
	switch n := refs.Add(-1); {
	case n == 0:
		freeBuffer(buf)
	case n < 0:
		panic("streaming: a chunk was released twice")
	}
}
