package stream

import (
	"io"
	"testing"

	"pgregory.net/rapid"
)

// However a stream is cut into pieces, it compares equal; a byte that is lost,
// doubled or changed does not.
func TestComparisonFindsLostDoubledAndChangedBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed, size := rapid.Uint64().Draw(t, "seed"), rapid.IntRange(64, 4096).Draw(t, "size")
		data := make([]byte, size)
		_, _ = io.ReadFull(New(seed, 1), data)
		s := New(seed, 1)
		for rest := data; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			if err := s.Compare(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if s.At() != int64(size) {
			t.Fatalf("at %d, want %d", s.At(), size)
		}
		// Eight bytes and more follow, so that chance cannot hide the fault.
		i := rapid.IntRange(0, size-16).Draw(t, "at")
		for what, broken := range map[string][]byte{
			"lost":    append(append([]byte{}, data[:i]...), data[i+1:]...),
			"doubled": append(append([]byte{}, data[:i+1]...), data[i:]...),
			"changed": append(append(append([]byte{}, data[:i]...), data[i]^1), data[i+1:]...),
		} {
			if New(seed, 1).Compare(broken) == nil {
				t.Fatalf("a %s byte at %d was not seen", what, i)
			}
		}
		if New(seed, 2).Compare(data) == nil {
			t.Fatal("two streams of one seed are equal")
		}
	})
}
