package network

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/payload"
)

// A read takes as much as its buffer holds, from the pool of its size, and the sizes
// follow what the connection carries.
func TestReadSizesFollowTheConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	from, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	raw, err := to.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	size, total := smallRead, 0
	sizes := map[int]bool{}
	go func() { _, _ = from.Write(make([]byte, 4<<20)) }()
	for total < 4<<20 {
		b, err := read(raw, size)
		if err != nil || b == nil || len(*b) > size {
			t.Fatalf("%v, %v", b, err)
		}
		sizes[cap(*b)] = true
		total += len(*b)
		size = nextRead(size, len(*b))
		if p, ok := payload.Parse((&outgoing{data: b}).MarshalBuffers()); !ok || p.Size != len(*b) {
			t.Fatalf("%d bytes are encoded as %d", len(*b), p.Size)
		}
	}
	if len(sizes) != 2 || !sizes[smallRead] || !sizes[largeRead] {
		t.Errorf("the buffers' sizes are %v", sizes)
	}
	if got := nextRead(largeRead, 100); got != smallRead {
		t.Errorf("after little data %d bytes", got)
	}

	// A read that waits ends with the deadline, with a reset, and with the end.
	if err := to.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := read(raw, smallRead); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("%v", err)
	}
	_ = to.SetReadDeadline(time.Time{})
	_ = from.(*net.TCPConn).SetLinger(0)
	_ = from.Close()
	if b, err := read(raw, smallRead); b != nil || !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%v, %v", b, err)
	}
	if b, err := read(raw, smallRead); b != nil || err != nil {
		t.Errorf("after the reset: %v, %v", b, err)
	}
}
