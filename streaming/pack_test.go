package streaming

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"
)

type piece struct {
	stream Stream
	data   []byte
}

// drainAll reads everything from a position, with runs of one stream joined.
func drainAll(t rapid.TB, l *Log, position int64, brief bool) (pieces []piece, gap int64) {
	t.Helper()
	r, err := l.NewReader(position, brief)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		c, err := r.Try(LargeChunk)
		if errors.Is(err, io.EOF) {
			return pieces, gap
		}
		if err != nil {
			t.Fatal(err)
		}
		gap += c.Gap
		if n := len(pieces); n > 0 && pieces[n-1].stream == c.Stream {
			pieces[n-1].data = append(pieces[n-1].data, c.Data...)
		} else if c.Gap == 0 {
			pieces = append(pieces, piece{c.Stream, bytes.Clone(c.Data)})
		}
		c.Release()
	}
}

func same(a, b []piece) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].stream != b[i].stream || !bytes.Equal(a[i].data, b[i].data) {
			return false
		}
	}
	return true
}

// A packed log reads as the log did: from everywhere, for every kind of
// reader, also when parts were spilled or evicted.
func TestPackedLogReadsAsTheLogDid(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		o := Options{Memory: 4 << 10, Capacity: 16 << 10, Policy: Evict}
		if rapid.Bool().Draw(t, "spill") {
			o.Dir = dir
		}
		l := NewLog(o)
		defer l.Close()
		n := rapid.IntRange(0, 40).Draw(t, "writes")
		settle := rapid.IntRange(0, n).Draw(t, "settle")
		for i := range n {
			if i == settle {
				l.MarkExit()
			}
			s := rapid.SampledFrom([]Stream{Stdout, Stderr}).Draw(t, "stream")
			data := rapid.SliceOfN(rapid.Byte(), 1, 2000).Draw(t, "data")
			if err := l.append(t.Context(), s, data); err != nil {
				t.Fatal(err)
			}
		}
		l.MarkExit()
		l.Seal()
		packed, ok := l.Pack(1 << 20)
		if !ok {
			t.Fatal("not packed")
		}
		again := packed.Open()
		_, end := l.Range()
		for _, brief := range []bool{false, true} {
			for _, at := range []int64{0, rapid.Int64Range(0, end).Draw(t, "position"), end} {
				want, missed := drainAll(t, l, at, brief)
				got, gap := drainAll(t, again, at, brief)
				if !same(got, want) || gap != missed {
					t.Fatalf("from %d: %d pieces and a gap of %d, want %d and %d", at, len(got), gap, len(want), missed)
				}
			}
		}
		if _, ok := l.Pack(len(packed.Runs) - 1); ok && len(packed.Runs) > 0 {
			t.Fatal("packed beyond the limit")
		}
	})
}

func TestArchive(t *testing.T) {
	a := NewArchive(t.TempDir(), 1000)
	defer a.Close()
	if _, ok := a.Get(0, 1); ok || a.Holds(0) {
		t.Fatal("an empty archive holds something")
	}
	if _, ok := a.Put(make([]byte, 1001)); ok {
		t.Fatal("took more than fits")
	}
	var at []int64
	for i := range 10 {
		place, ok := a.Put(bytes.Repeat([]byte{byte(i)}, 300))
		if !ok {
			t.Fatal("not kept")
		}
		at = append(at, place)
	}
	for i, place := range at {
		got, ok := a.Get(place, 300)
		if held := i >= 7; ok != held || a.Holds(place) != held {
			t.Fatalf("piece %d: held %v, want %v", i, ok, held)
		}
		if ok && !bytes.Equal(got, bytes.Repeat([]byte{byte(i)}, 300)) {
			t.Fatalf("piece %d differs", i)
		}
	}
	if _, ok := NewArchive("", 1000).Put([]byte("x")); ok {
		t.Fatal("kept without a place")
	}
	if _, ok := NewArchive("/proc", 1000).Put([]byte("x")); ok {
		t.Fatal("kept where nothing can be written")
	}
}
