package faults

import (
	"io"
	"net"
	"sync"
	"testing"
)

// front is one address before another, which can be changed, taken away, or
// made to swallow what comes.
type front struct {
	address string
	mu      sync.Mutex
	network string
	target  string // empty: away
	open    map[net.Conn]bool
	hole    chan struct{} // not nil: nothing passes until it is closed
}

func newFront(t *testing.T, network, target string) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{address: l.Addr().String(), network: network, target: target, open: map[net.Conn]bool{}}
	t.Cleanup(func() {
		_ = l.Close()
		f.pass()
		f.cut()
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go f.join(conn)
		}
	}()
	return f
}

func (f *front) to(target string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.target = target
}

// away refuses connections until back is called.
func (f *front) away() (back func()) {
	f.mu.Lock()
	target := f.target
	f.mu.Unlock()
	f.to("")
	return func() { f.to(target) }
}

func (f *front) join(conn net.Conn) {
	f.mu.Lock()
	target := f.target
	f.mu.Unlock()
	back, err := net.Dial(f.network, target)
	if err != nil {
		_ = conn.Close()
		return
	}
	f.mu.Lock()
	f.open[conn], f.open[back] = true, true
	f.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{conn, back}, {back, conn}} {
		both.Go(func() {
			f.copy(way[0], way[1])
			_ = way[0].Close()
		})
	}
	both.Wait()
	f.mu.Lock()
	delete(f.open, conn)
	delete(f.open, back)
	f.mu.Unlock()
}

func (f *front) copy(to io.Writer, from io.Reader) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		f.mu.Lock()
		hole := f.hole
		f.mu.Unlock()
		if hole != nil {
			<-hole
		}
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			return
		}
	}
}

// cut breaks every connection.
func (f *front) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.open {
		_ = conn.Close()
	}
}

// swallow lets nothing through any more, and breaks nothing.
func (f *front) swallow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hole = make(chan struct{})
}

// pass lets through what was swallowed, and what comes.
func (f *front) pass() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hole != nil {
		close(f.hole)
		f.hole = nil
	}
}
