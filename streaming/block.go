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

// block is a part of the log: runs of bytes, each after a header with its stream and
// length. The spill file holds the same bytes. So the order of the streams needs no
// index per record, and the size of the block bounds the cost of tiny records.
//
// A block in memory is reference counted: the log holds one reference, each chunk of a
// reader another. Published bytes never change; only the last header of the last block
// does, under Log.mu.
type block struct {
	refs  atomic.Int32
	buf   []byte // nil once the block is in the spill file only
	used  int    // bytes of buf in use, including headers
	last  int    // offset of the last run's header, -1 if there is no run
	base  int64  // position of the first byte
	end   int64  // position after the last byte
	disk  int64  // logical offset in the spill file, -1 while in memory
	freed bool   // evicted, or the log is closed
}

func putHeader(p []byte, s Stream, n int) {
	binary.LittleEndian.PutUint32(p, uint32(s)<<30|uint32(n))
}

func getHeader(p []byte) (Stream, int) {
	v := binary.LittleEndian.Uint32(p)
	return Stream(v >> 30), int(v & maxRun)
}

// The size classes of blocks. A command with little output costs the smallest.
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

// release drops one reference to the bytes. The last one frees the buffer: buf must not
// be used afterwards.
func release(refs *atomic.Int32, buf []byte) {
	switch n := refs.Add(-1); {
	case n == 0:
		freeBuffer(buf)
	case n < 0:
		panic("streaming: a chunk was released twice")
	}
}
