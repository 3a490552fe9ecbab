// Package stream makes the bytes that both sides of the chaos test know: a seed
// stands for an endless stream, so that any piece that is lost, doubled or out
// of place is seen at once.
package stream

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
)

// Stream is an endless, reproducible stream of bytes. It is not safe for
// concurrent use.
type Stream struct {
	source *rand.ChaCha8
	at     int64
	buffer []byte
}

// New returns the stream number n of a seed, from its first byte on.
func New(seed uint64, n byte) *Stream {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	key[8] = n
	return &Stream{source: rand.NewChaCha8(key)}
}

// Read fills p; it never fails.
func (s *Stream) Read(p []byte) (int, error) {
	n, err := s.source.Read(p)
	s.at += int64(n)
	return n, err
}

// At returns how many bytes of the stream were read or compared.
func (s *Stream) At() int64 { return s.at }

// Compare fails unless p is what comes next in the stream.
func (s *Stream) Compare(p []byte) error {
	if cap(s.buffer) < len(p) {
		s.buffer = make([]byte, len(p))
	}
	want, from := s.buffer[:len(p)], s.at
	_, _ = io.ReadFull(s, want)
	if bytes.Equal(p, want) {
		return nil
	}
	i := 0
	for p[i] == want[i] {
		i++
	}
	return fmt.Errorf("byte %d is %#02x, want %#02x", from+int64(i), p[i], want[i])
}
