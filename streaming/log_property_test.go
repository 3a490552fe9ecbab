package streaming

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"
)

// model is the trivial log: every byte that was ever stored.
type model struct {
	data    []byte
	streams []Stream
	written [4]int64
	max     int64
	settled int64
	sealed  bool
}

func (m *model) write(s Stream, p []byte) {
	m.written[s] += int64(len(p))
	for _, b := range p {
		if m.max > 0 && int64(len(m.data)) >= m.max {
			break
		}
		m.data = append(m.data, b)
		m.streams = append(m.streams, s)
	}
}

type follower struct {
	r     *Reader
	brief bool
	pos   int64
	held  []Chunk
	want  [][]byte
}

// TestLogMatchesItsModel runs operations on a log in random order and compares the readers
// with the model: every byte once, in order and of the right stream, every loss as a gap,
// and no loss under Block.
func TestLogMatchesItsModel(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		o := Options{
			Memory:   rapid.IntRange(64, 2048).Draw(t, "memory"),
			Capacity: int64(rapid.IntRange(64, 8192).Draw(t, "capacity")),
			Reserve:  int64(rapid.SampledFrom([]int{-1, 0, 100}).Draw(t, "reserve")),
			Policy:   rapid.SampledFrom([]Policy{Block, Evict}).Draw(t, "policy"),
			Max:      int64(rapid.SampledFrom([]int{0, 0, 500, 5000}).Draw(t, "max")),
		}
		if rapid.Bool().Draw(t, "spill") {
			o.Dir = dir
		}
		if rapid.Bool().Draw(t, "budget") {
			o.Budget = NewBudget(int64(rapid.IntRange(1, 4096).Draw(t, "limit")))
		}
		fed := 0
		o.Room = func() { fed++ }
		l := NewLog(o)
		m := &model{max: o.Max, settled: -1}
		policy := o.Policy
		var fs []*follower
		starving := false
		fedBefore := 0

		check := func() {
			oldest, end := l.Range()
			if end != int64(len(m.data)) {
				t.Fatalf("end is %d, want %d", end, len(m.data))
			}
			if oldest < 0 || oldest > end {
				t.Fatalf("oldest %d of %d", oldest, end)
			}
			if policy == Evict {
				return
			}
			if starving && fed == fedBefore {
				for _, f := range fs {
					if f.pos == end {
						t.Fatalf("the writer starves with a reader at the end")
					}
				}
			}
		}

		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"write": func(t *rapid.T) {
				s := rapid.SampledFrom([]Stream{Stdout, Stderr, Terminal}).Draw(t, "stream")
				p := rapid.SliceOfN(rapid.Byte(), 1, 700).Draw(t, "bytes")
				fedBefore = fed
				n, err := l.Fill(s, func(b []byte) (int, error) { return copy(b, p), nil })
				starving = errors.Is(err, ErrFull)
				switch {
				case m.sealed:
					if !errors.Is(err, ErrSealed) {
						t.Fatalf("write to a sealed log: %v", err)
					}
				case starving:
					if policy == Evict {
						t.Fatalf("full with Evict")
					}
				case err != nil:
					t.Fatal(err)
				}
				m.write(s, p[:n])
			},
			"attach": func(t *rapid.T) {
				if len(fs) > 4 {
					t.Skip()
				}
				pos := int64(rapid.IntRange(0, len(m.data)).Draw(t, "pos"))
				brief := rapid.Bool().Draw(t, "brief")
				r, err := l.NewReader(pos, brief)
				if err != nil {
					t.Fatal(err)
				}
				fs = append(fs, &follower{r: r, pos: pos, brief: brief})
			},
			"attach beyond": func(t *rapid.T) {
				if _, err := l.NewReader(int64(len(m.data))+1, false); !errors.Is(err, ErrPosition) {
					t.Fatalf("got %v", err)
				}
			},
			"read": func(t *rapid.T) {
				if len(fs) == 0 {
					t.Skip()
				}
				f := rapid.SampledFrom(fs).Draw(t, "reader")
				limit := rapid.IntRange(1, 400).Draw(t, "limit")
				end, over := int64(len(m.data)), m.sealed
				if f.brief && m.settled >= 0 {
					end, over = m.settled, true
				}
				oldest, _ := l.Range()
				c, err := f.r.Try(limit)
				switch {
				case f.pos >= end && over:
					if !errors.Is(err, io.EOF) {
						t.Fatalf("at the end: %v", err)
					}
					return
				case f.pos >= end:
					if !errors.Is(err, ErrEmpty) {
						t.Fatalf("nothing to read: %v", err)
					}
					return
				case err != nil:
					t.Fatal(err)
				case c.Position != f.pos:
					t.Fatalf("chunk at %d, want %d", c.Position, f.pos)
				case c.Gap != 0:
					if f.pos >= oldest {
						t.Fatalf("gap at %d, but %d is retained", f.pos, oldest)
					}
					if want := min(oldest, end); f.pos+c.Gap != want {
						t.Fatalf("gap to %d, want %d", f.pos+c.Gap, want)
					}
					f.pos += c.Gap
					return
				}
				n := int64(len(c.Data))
				if n == 0 || n > int64(limit) || f.pos+n > end {
					t.Fatalf("%d bytes at %d of %d, limit %d", n, f.pos, end, limit)
				}
				if !bytes.Equal(c.Data, m.data[f.pos:f.pos+n]) {
					t.Fatalf("wrong bytes at %d", f.pos)
				}
				for i := range n {
					if m.streams[f.pos+i] != c.Stream {
						t.Fatalf("byte %d is of stream %d, not %d", f.pos+i, m.streams[f.pos+i], c.Stream)
					}
				}
				f.held = append(f.held, c)
				f.want = append(f.want, bytes.Clone(c.Data))
				f.pos += n
			},
			"release": func(t *rapid.T) {
				for _, f := range fs {
					for i := range f.held {
						if !bytes.Equal(f.held[i].Data, f.want[i]) {
							t.Fatalf("bytes changed while they were held")
						}
						f.held[i].Release()
					}
					f.held, f.want = nil, nil
				}
			},
			"detach": func(t *rapid.T) {
				if len(fs) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(fs)-1).Draw(t, "reader")
				for j := range fs[i].held {
					fs[i].held[j].Release()
				}
				fs[i].r.Close()
				fs = append(fs[:i], fs[i+1:]...)
			},
			"policy": func(t *rapid.T) {
				policy = rapid.SampledFrom([]Policy{Block, Evict}).Draw(t, "policy")
				l.SetPolicy(policy)
			},
			"settle": func(*rapid.T) {
				if m.settled < 0 {
					m.settled = int64(len(m.data))
				}
				l.MarkExit()
			},
			"seal": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "really") != 0 {
					t.Skip()
				}
				m.sealed = true
				l.Seal()
			},
			"park": func(*rapid.T) {
				if m.sealed {
					l.Park()
				}
			},
			"counts": func(t *rapid.T) {
				var dropped int64
				for _, s := range []Stream{Stdout, Stderr, Terminal} {
					c := l.Counts(s)
					if c.Bytes != m.written[s] {
						t.Fatalf("stream %d: %d bytes, want %d", s, c.Bytes, m.written[s])
					}
					dropped += c.Bytes
					var kept int64
					for _, k := range m.streams {
						if k == s {
							kept++
						}
					}
					if c.Truncated != (kept != c.Bytes) {
						t.Fatalf("stream %d truncated: %v, kept %d of %d", s, c.Truncated, kept, c.Bytes)
					}
				}
			},
		})
		for _, f := range fs {
			for i := range f.held {
				f.held[i].Release()
			}
			f.r.Close()
		}
		l.Close()
		if used := o.Budget.held(); used != 0 {
			t.Fatalf("%d bytes of the budget are still taken", used)
		}
	})
}
