package network

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/mem"

	"github.com/sandgate/sandgate/agent/payload"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// incoming is a ForwardRequest whose data stays in the received buffers.
type incoming struct {
	*sandboxv1.ForwardRequest
	payload.Payload
}

// outgoing is a ForwardResponse with data in a buffer of read.
type outgoing struct{ data *[]byte }

// MarshalBuffers encodes the message and gives the buffer to gRPC.
func (m *outgoing) MarshalBuffers() mem.BufferSlice { return payload.Encode(m.data, buffers{}) }

// Sizes of a read. Large ones cost a third less processor time per byte, but a
// connection that carries little should not hold a large buffer.
const (
	smallRead = 32_000
	largeRead = streaming.LargeChunk
)

// nextRead returns the size of the next read after one of the given size returned n
// bytes.
func nextRead(size, n int) int {
	if n == size || size == largeRead && n > smallRead {
		return largeRead
	}
	return smallRead
}

// buffers is the pool of the buffers for reads. gRPC's own clears a buffer each time.
type buffers struct{}

var _ mem.BufferPool = buffers{}

var small, large sync.Pool

// Get implements mem.BufferPool for the two sizes of a read.
func (buffers) Get(size int) *[]byte {
	pool := &small
	if size == largeRead {
		pool = &large
	}
	if b, ok := pool.Get().(*[]byte); ok {
		*b = (*b)[:size]
		return b
	}
	b := make([]byte, size)
	return &b
}

// Put implements mem.BufferPool.
func (buffers) Put(b *[]byte) {
	if cap(*b) == largeRead {
		large.Put(b)
	} else {
		small.Put(b)
	}
}

// read waits for bytes and returns at most size of them in a buffer of the pool, or nil
// at the end. A connection that waits holds no buffer.
func read(conn syscall.RawConn, size int) (*[]byte, error) {
	var got *[]byte
	var failed error
	err := conn.Read(func(fd uintptr) bool {
		b := buffers{}.Get(size)
		n, err := unix.Read(int(fd), *b)
		for err == unix.EINTR {
			n, err = unix.Read(int(fd), *b)
		}
		if n > 0 {
			*b = (*b)[:n]
			got = b
			return true
		}
		buffers{}.Put(b)
		if err == unix.EAGAIN {
			return false
		}
		failed = err
		return true
	})
	if err != nil {
		return nil, err //nolint:wrapcheck // toFault looks at the errno
	}
	return got, failed
}
