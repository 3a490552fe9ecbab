package server

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"
)

// recorder notes writes. Its other methods are not for use.
type recorder struct {
	net.Conn
	writes chan []byte
	fails  error
	closed chan struct{}
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.fails != nil {
		return 0, r.fails
	}
	r.writes <- bytes.Clone(p)
	return len(p), nil
}

func (r *recorder) Close() error {
	close(r.closed)
	return nil
}

func frameOf(kind, flags byte, payload string) []byte {
	return append([]byte{0, 0, byte(len(payload)), kind, flags, 0, 0, 0, 1}, payload...)
}

func TestCorked(t *testing.T) {
	begin := frameOf(frameHeaders, endHeaders, "abc")
	whole := frameOf(frameHeaders, endHeaders|endStream, "abc")
	data := frameOf(0, endStream, "message")

	t.Run("the beginning of a call goes with its message", func(t *testing.T) {
		r := &recorder{writes: make(chan []byte, 8)}
		c := &corked{Conn: r}
		for range 3 {
			// The pause before the second write is far below corkTime on any machine
			// that runs at all; where it is not, there are two writes, in order.
			_, _ = c.Write(begin)
			_, _ = c.Write(data)
			got := <-r.writes
			if len(got) == len(begin) {
				got = append(got, <-r.writes...)
			}
			if want := append(bytes.Clone(begin), data...); !bytes.Equal(got, want) {
				t.Fatalf("got %x, want %x", got, want)
			}
		}
	})
	t.Run("alone it goes soon", func(t *testing.T) {
		r := &recorder{writes: make(chan []byte, 8)}
		c := &corked{Conn: r}
		_, _ = c.Write(begin)
		select {
		case got := <-r.writes:
			if !bytes.Equal(got, begin) {
				t.Errorf("got %x", got)
			}
		case <-time.After(10 * time.Second):
			t.Error("it never went")
		}
	})
	t.Run("what is whole or no call goes at once", func(t *testing.T) {
		r := &recorder{writes: make(chan []byte, 8)}
		c := &corked{Conn: r}
		for _, p := range [][]byte{whole, data, []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), bytes.Repeat(begin, 1000)} {
			if n, err := c.Write(p); n != len(p) || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
			select {
			case got := <-r.writes:
				if !bytes.Equal(got, p) {
					t.Errorf("got %x", got)
				}
			default:
				t.Errorf("%x waits", p[:min(len(p), 32)])
			}
		}
	})
	t.Run("a late failure ends the connection", func(t *testing.T) {
		fails := errors.New("broken")
		r := &recorder{fails: fails, closed: make(chan struct{})}
		c := &corked{Conn: r}
		_, _ = c.Write(begin)
		select {
		case <-r.closed:
		case <-time.After(10 * time.Second):
			t.Fatal("it stays open")
		}
		if _, err := c.Write(data); !errors.Is(err, fails) {
			t.Errorf("write: %v", err)
		}
	})
}
