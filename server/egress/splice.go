package egress

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// chunk is the most that one read takes. gRPC sends messages of up to this size
// from its smaller buffers.
const chunk = 32_000

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// chunkPool is chunks for net/http.
type chunkPool struct{}

func (chunkPool) Get() []byte  { return chunks.Get().(*[chunk]byte)[:] }
func (chunkPool) Put(b []byte) { chunks.Put((*[chunk]byte)(b)) }

// duplex is a stream whose directions end one by one.
type duplex interface {
	io.Writer
	CloseWrite() error
}

// splice copies from the client to the upstream and back until both directions
// have ended. from holds what comes from the client, back what comes from the
// upstream.
func (c *Conn) splice(client Client, from io.Reader, back io.Reader) error {
	c.raw.Store(true)
	if c.readsRequests() {
		// A newer policy came after the look at the first bytes.
		return c.target.denied(ReasonRequest, "the rules now read its requests; connect again")
	}
	sent := make(chan error, 1)
	go func() {
		err := c.pump(c.upstream, from, &c.sent)
		if err != nil {
			c.abort(err)
		}
		sent <- err
	}()
	err := c.pump(client, back, &c.received)
	if err != nil {
		c.abort(err)
	}
	return errors.Join(err, <-sent)
}

// idleChunk is what a direction that carries little keeps. Most connections are
// idle most of the time.
const idleChunk = 4096

// pump copies until src ends, and passes the end on.
func (c *Conn) pump(dst duplex, src io.Reader, count *atomic.Int64) error {
	var small [idleChunk]byte
	var large *[chunk]byte
	defer func() { release(large) }()
	for {
		buf := small[:]
		if large != nil {
			buf = large[:]
		}
		n, err := src.Read(buf)
		if n > 0 {
			c.touch()
			if err := c.await(n, nil); err != nil {
				return err
			}
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
			count.Add(int64(n))
			c.touch()
		}
		switch {
		case errors.Is(err, io.EOF):
			return dst.CloseWrite()
		case err != nil:
			return err
		case n < idleChunk:
			release(large)
			large = nil
		case large == nil:
			large = chunks.Get().(*[chunk]byte)
		}
	}
}

func release(large *[chunk]byte) {
	if large != nil {
		chunks.Put(large)
	}
}
