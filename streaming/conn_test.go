package streaming

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// pipeEnd is one end of a stream of messages in memory.
type pipeEnd struct {
	in, out chan []byte // nil: the end of the direction
	broken  chan struct{}
	once    *sync.Once
	last    []byte // what Receive returned
}

func newPipe() (*Conn, *Conn) {
	a, b, broken, once := make(chan []byte), make(chan []byte), make(chan struct{}), &sync.Once{}
	return NewConn(&pipeEnd{in: a, out: b, broken: broken, once: once}), NewConn(&pipeEnd{in: b, out: a, broken: broken, once: once})
}

var errReset = errors.New("reset")

func (p *pipeEnd) Send(data []byte) error {
	if len(data) > MaxConnChunk {
		return errors.New("too large")
	}
	return p.send(append([]byte{}, data...))
}

func (p *pipeEnd) SendEOF() error { return p.send(nil) }

func (p *pipeEnd) send(m []byte) error {
	select {
	case p.out <- m:
		return nil
	case <-p.broken:
		return errReset
	}
}

// Receive returns a message in two parts, and overwrites the one before.
func (p *pipeEnd) Receive() ([][]byte, error) {
	for i := range p.last {
		p.last[i] = 0xff
	}
	select {
	case m := <-p.in:
		if m == nil {
			return nil, io.EOF
		}
		p.last = m
		return slices.DeleteFunc([][]byte{m[:len(m)/2], m[len(m)/2:]}, func(part []byte) bool { return len(part) == 0 }), nil
	case <-p.broken:
		return nil, errReset
	}
}

func (p *pipeEnd) Reset() { p.once.Do(func() { close(p.broken) }) }

// Whatever the sizes of writes and reads, each direction arrives as it was sent,
// also when the other has ended before.
func TestConnCarriesBothDirections(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		left, right := newPipe()
		var wg sync.WaitGroup
		for _, d := range []struct {
			name     string
			from, to *Conn
		}{{"there", left, right}, {"back", right, left}} {
			chunks := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 300), 0, 8).Draw(t, d.name)
			if rapid.Bool().Draw(t, d.name+" large") {
				chunks = append(chunks, bytes.Repeat([]byte{7}, MaxConnChunk*2+1))
			}
			wg.Go(func() {
				for _, c := range chunks {
					if n, err := d.from.Write(c); n != len(c) || err != nil {
						t.Errorf("%s: wrote %d of %d: %v", d.name, n, len(c), err)
					}
				}
				if err := d.from.CloseWrite(); err != nil {
					t.Error(err)
				}
			})
			byWriteTo := rapid.Bool().Draw(t, d.name+" by WriteTo")
			wg.Go(func() {
				var got []byte
				var err error
				if byWriteTo {
					var all bytes.Buffer
					_, err = d.to.WriteTo(&all)
					got = all.Bytes()
				} else {
					got, err = io.ReadAll(d.to)
				}
				if err != nil || !bytes.Equal(got, bytes.Join(chunks, nil)) {
					t.Errorf("%s: read %d bytes, want %d: %v", d.name, len(got), len(bytes.Join(chunks, nil)), err)
				}
			})
		}
		wg.Wait()
		if !left.Complete() || !right.Complete() {
			t.Error("not complete")
		}
		_ = left.Close()
		// An orderly end is no reset.
		if _, err := right.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestConnReset(t *testing.T) {
	left, right := newPipe()
	_ = left.Close()
	<-left.Done()
	if _, err := right.Read(make([]byte, 1)); !errors.Is(err, errReset) {
		t.Errorf("the other end reads %v", err)
	}
	if _, err := right.Write([]byte("x")); !errors.Is(err, errReset) {
		t.Errorf("the other end writes: %v", err)
	}
	if left.Complete() || right.Complete() {
		t.Error("a reset is no regular end")
	}
	if err := left.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func TestConnWriteAfterCloseWrite(t *testing.T) {
	left, right := newPipe()
	read := make(chan error)
	go func() {
		_, err := right.Read(make([]byte, 1))
		read <- err
	}()
	if err := left.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := <-read; !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if _, err := left.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if err := left.CloseWrite(); err != nil {
		t.Errorf("a second CloseWrite: %v", err)
	}
	_ = left.Close()
}

// A reader that is about to end may still read beside the next one.
func TestConnHasSeveralReaders(t *testing.T) {
	a, b := newPipe()
	const messages = 1000
	go func() {
		for range messages {
			if _, err := a.Write([]byte("abc")); err != nil {
				return
			}
		}
		_ = a.CloseWrite()
	}()
	var wg sync.WaitGroup
	var read [2]int64
	for i := range read {
		wg.Go(func() {
			var err error
			if read[i], err = io.Copy(io.Discard, b); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if read[0]+read[1] != 3*messages {
		t.Errorf("read %d and %d bytes", read[0], read[1])
	}
}
