package files

import (
	"crypto/sha256"
	"hash"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/payload"
)

// hashAhead is how many chunks may wait to be hashed.
const hashAhead = 4

// hashInline is how many bytes are hashed without another goroutine: for a small file
// the hand-over costs more than it saves.
const hashInline = 128 << 10

// hasher computes a SHA-256 concurrently with its caller. stop must be called.
type hasher struct {
	sum   hash.Hash
	bytes int64
	in    chan payload.Payload
	done  chan struct{}
	err   error // why there is no hash
}

func newHasher() *hasher { return &hasher{sum: sha256.New()} }

// add hashes and then releases the next bytes. They must not change until then.
func (h *hasher) add(c payload.Payload) {
	h.bytes += int64(c.Size)
	if h.in == nil && h.bytes <= hashInline {
		h.hash(c)
		return
	}
	if h.in == nil {
		h.in, h.done = make(chan payload.Payload, hashAhead), make(chan struct{})
		go func(in <-chan payload.Payload, done chan<- struct{}) {
			defer close(done)
			for c := range in {
				if err := fault.Catch(func() error { h.hash(c); return nil }); err != nil {
					h.err = err
				}
			}
		}(h.in, h.done)
	}
	h.in <- c
}

func (h *hasher) hash(c payload.Payload) {
	for _, p := range c.Parts {
		h.sum.Write(p)
	}
	c.Release()
}

// stop waits until all bytes are hashed. More may be added afterwards.
func (h *hasher) stop() {
	if h.in == nil {
		return
	}
	close(h.in)
	<-h.done
	h.in, h.done = nil, nil
}

// digest stops and returns the hash of all bytes. It repeats a panic of the hashing
// goroutine.
func (h *hasher) digest() []byte {
	h.stop()
	if h.err != nil {
		panic(h.err)
	}
	return h.sum.Sum(nil)
}
