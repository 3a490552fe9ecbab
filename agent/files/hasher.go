package files

import (
	"crypto/sha256"
	"hash"
)

// hashAhead is how many chunks may wait to be hashed.
const hashAhead = 4

// hashInline is how many bytes are hashed at once, without another goroutine:
// for a small file the hand-over would cost more than it saves.
const hashInline = 128 << 10

// hasher computes a SHA-256 while its caller does something else with the same
// bytes. The zero value is not usable; stop must be called.
type hasher struct {
	sum   hash.Hash
	bytes int64
	in    chan content
	done  chan struct{}
}

func newHasher() *hasher { return &hasher{sum: sha256.New()} }

// add takes the next bytes and releases them when it is done. They must not
// change until then.
func (h *hasher) add(c content) {
	h.bytes += int64(c.size)
	if h.in == nil && h.bytes <= hashInline {
		h.hash(c)
		return
	}
	if h.in == nil {
		h.in, h.done = make(chan content, hashAhead), make(chan struct{})
		go func(in <-chan content, done chan<- struct{}) {
			defer close(done)
			for c := range in {
				h.hash(c)
			}
		}(h.in, h.done)
	}
	h.in <- c
}

func (h *hasher) hash(c content) {
	for _, p := range c.parts {
		h.sum.Write(p)
	}
	c.release()
}

// stop waits until everything is hashed. More may be added afterwards.
func (h *hasher) stop() {
	if h.in == nil {
		return
	}
	close(h.in)
	<-h.done
	h.in, h.done = nil, nil
}

// Sum stops and returns the hash of all that was added.
func (h *hasher) Sum() []byte {
	h.stop()
	return h.sum.Sum(nil)
}
