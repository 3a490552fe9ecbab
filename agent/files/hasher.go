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
	in    chan []byte
	done  chan struct{}
}

func newHasher() *hasher { return &hasher{sum: sha256.New()} }

// add takes the next bytes. They must not change until stop or Sum returned.
func (h *hasher) add(b []byte) {
	h.bytes += int64(len(b))
	if h.in == nil && h.bytes <= hashInline {
		h.sum.Write(b)
		return
	}
	if h.in == nil {
		h.in, h.done = make(chan []byte, hashAhead), make(chan struct{})
		go func(in <-chan []byte, done chan<- struct{}) {
			defer close(done)
			for b := range in {
				h.sum.Write(b)
			}
		}(h.in, h.done)
	}
	h.in <- b
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
