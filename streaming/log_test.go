package streaming

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
)

func drain(t *testing.T, r *Reader, limit int) (out []byte, runs []Stream, gaps int64) {
	t.Helper()
	defer r.Close()
	for {
		c, err := r.Next(context.Background(), limit)
		if errors.Is(err, io.EOF) {
			return out, runs, gaps
		}
		if err != nil {
			t.Error(err)
			return out, runs, gaps
		}
		gaps += c.Gap
		out = append(out, c.Data...)
		if c.Gap == 0 && (len(runs) == 0 || runs[len(runs)-1] != c.Stream) {
			runs = append(runs, c.Stream)
		}
		c.Release()
	}
}

// Readers at different speeds and positions, and one after the end, get the same bytes.
func TestReadersAtAnySpeedGetTheSameBytes(t *testing.T) {
	l := NewLog(Options{Memory: 32 << 10, Capacity: 8 << 20, Dir: t.TempDir(), Policy: Evict})
	defer l.Close()
	rnd := rand.New(rand.NewSource(1))
	want := make([]byte, 4<<20)
	rnd.Read(want)

	var wg sync.WaitGroup
	for i := range 8 {
		r, err := l.NewReader(0, false)
		if err != nil {
			t.Fatal(err)
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			got, _, gaps := drain(t, r, 1+i*i*1000)
			if gaps != 0 || !bytes.Equal(got, want) {
				t.Errorf("reader %d: %d bytes, gaps %d", i, len(got), gaps)
			}
		}()
	}
	for at := 0; at < len(want); {
		n := min(1+rnd.Intn(20_000), len(want)-at)
		if err := l.append(context.Background(), Stream(1+rnd.Intn(2)), want[at:at+n]); err != nil {
			t.Fatal(err)
		}
		at += n
	}
	l.Seal()
	wg.Wait()
	for range 20 {
		pos := rnd.Intn(len(want))
		r, err := l.NewReader(int64(pos), false)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, gaps := drain(t, r, 30_000); gaps != 0 || !bytes.Equal(got, want[pos:]) {
			t.Fatalf("replay from %d differs", pos)
		}
	}
}

func TestReplayInterleavesAsTheFirstRun(t *testing.T) {
	l := NewLog(Options{Memory: 4096, Dir: t.TempDir(), Policy: Evict})
	defer l.Close()
	var want []Stream
	for i := range 5000 {
		s := Stream(1 + i%2)
		want = append(want, s)
		if err := l.append(context.Background(), s, fmt.Appendf(nil, "%d\n", i)); err != nil {
			t.Fatal(err)
		}
	}
	l.Seal()
	for range 2 {
		r, err := l.NewReader(0, false)
		if err != nil {
			t.Fatal(err)
		}
		_, runs, gaps := drain(t, r, 32_000)
		if gaps != 0 || len(runs) != len(want) {
			t.Fatalf("%d runs, want %d; gaps %d", len(runs), len(want), gaps)
		}
	}
}

// Under Block no byte is lost however slow the only reader is, and no more than the
// capacity is kept for it.
func TestBlockWaitsForTheReader(t *testing.T) {
	l := NewLog(Options{Memory: 16 << 10})
	defer l.Close()
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	r, err := l.NewReader(0, false)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- l.append(context.Background(), Stdout, want)
		l.Seal()
	}()
	got, _, gaps := drain(t, r, 777)
	if gaps != 0 || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, gaps %d", len(got), gaps)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestBlockedWriterIsFreed(t *testing.T) {
	for name, free := range map[string]func(*Log, context.CancelCauseFunc){
		"by the policy":  func(l *Log, _ context.CancelCauseFunc) { l.SetPolicy(Evict) },
		"by its context": func(_ *Log, cancel context.CancelCauseFunc) { cancel(io.ErrClosedPipe) },
		"by Close":       func(l *Log, _ context.CancelCauseFunc) { l.Close() },
		"by a reader": func(l *Log, _ context.CancelCauseFunc) {
			r, err := l.NewReader(0, false)
			if err != nil {
				panic(err)
			}
			for {
				c, err := r.Next(context.Background(), 4096)
				if err != nil {
					return
				}
				c.Release()
				if c.Position > 30_000 {
					r.Close()
					l.Close()
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			starved := make(chan struct{}, 1)
			l := NewLog(Options{Memory: 8 << 10, Reserve: -1})
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					_, err := l.Fill(Stdout, func(b []byte) (int, error) { return len(b), nil })
					if errors.Is(err, ErrFull) {
						break
					}
				}
				close(starved)
				// Whether it succeeds depends on what freed it.
				_ = l.append(ctx, Stdout, make([]byte, 40_000))
			}()
			<-starved
			free(l, cancel)
			select {
			case <-done:
			case <-time.After(10 * time.Second):
				t.Fatal("the writer is still blocked")
			}
			l.Close()
		})
	}
}

// A slow reader under Block does not delay the writer: only the fastest one does, and the
// slow one gets a gap of exactly the evicted bytes.
func TestSlowReaderGetsAGap(t *testing.T) {
	l := NewLog(Options{Memory: 8 << 10})
	defer l.Close()
	slow, _ := l.NewReader(0, false)
	fast, _ := l.NewReader(0, false)
	want := make([]byte, 1<<20)
	for i := range want {
		want[i] = byte(i >> 8)
	}
	go func() {
		_ = l.append(context.Background(), Stdout, want)
		l.Seal()
	}()
	got, _, gaps := drain(t, fast, 4096)
	if gaps != 0 || !bytes.Equal(got, want) {
		t.Fatalf("the fast reader has %d bytes and gaps of %d", len(got), gaps)
	}
	rest, _, missed := drain(t, slow, 4096)
	if missed == 0 || int64(len(rest))+missed != int64(len(want)) {
		t.Fatalf("the slow reader has %d bytes and missed %d of %d", len(rest), missed, len(want))
	}
	if !bytes.Equal(rest, want[len(want)-len(rest):]) {
		t.Fatal("what the slow reader has is not the tail")
	}
}

func TestBriefReaderEndsWithTheLeader(t *testing.T) {
	l := NewLog(Options{})
	defer l.Close()
	brief, _ := l.NewReader(0, true)
	long, _ := l.NewReader(0, false)
	ctx := context.Background()
	_ = l.append(ctx, Stdout, []byte("leader"))
	l.MarkExit()
	_ = l.append(ctx, Stdout, []byte(" and child"))
	if got, _, _ := drain(t, brief, 100); string(got) != "leader" {
		t.Fatalf("got %q", got)
	}
	l.Seal()
	if got, _, _ := drain(t, long, 100); string(got) != "leader and child" {
		t.Fatalf("got %q", got)
	}
}

func TestSpillGoesWithTheLog(t *testing.T) {
	dir := t.TempDir()
	l := NewLog(Options{Memory: 4 << 10, Dir: dir, Policy: Evict})
	_ = l.append(context.Background(), Stdout, make([]byte, 1<<20))
	if l.spill == nil {
		t.Fatal("nothing was spilled")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 0 {
		t.Fatalf("left in the directory: %v, %v", entries, err)
	}
	l.Close()
}

func TestUnwritableDirectoryMeansNoSpill(t *testing.T) {
	l := NewLog(Options{Memory: 4 << 10, Dir: "/proc/self", Policy: Evict})
	defer l.Close()
	if err := l.append(context.Background(), Stdout, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if oldest, end := l.Range(); end != 1<<20 || oldest < end-4<<10 {
		t.Fatalf("retained %d to %d", oldest, end)
	}
}

// Many readers that each hold a chunk cost one buffer, not one each.
func TestMemoryDoesNotGrowWithReaders(t *testing.T) {
	budget := NewBudget(0)
	l := NewLog(Options{Memory: 64 << 10, Policy: Evict, Budget: budget})
	defer l.Close()
	for range 1000 {
		r, err := l.NewReader(0, false)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
	}
	_ = l.append(context.Background(), Stdout, make([]byte, 1<<20))
	if used := budget.held(); used > 64<<10 {
		t.Fatalf("%d bytes in memory", used)
	}
}

func TestShortLogIsSmallWhenSealed(t *testing.T) {
	budget := NewBudget(0)
	l := NewLog(Options{Budget: budget})
	defer l.Close()
	_ = l.append(context.Background(), Stdout, []byte("ok\n"))
	l.Seal()
	if used := budget.held(); used > 16 {
		t.Fatalf("%d bytes in memory", used)
	}
}

func BenchmarkLog(b *testing.B) {
	for _, spill := range []bool{false, true} {
		b.Run(fmt.Sprintf("spill=%v", spill), func(b *testing.B) {
			o := Options{Capacity: 64 << 20}
			if spill {
				o.Dir = b.TempDir()
			}
			l := NewLog(o)
			defer l.Close()
			r, _ := l.NewReader(0, false)
			done := make(chan int64)
			go func() {
				var n int64
				for {
					c, err := r.Next(context.Background(), LargeChunk)
					if err != nil {
						done <- n
						return
					}
					n += int64(len(c.Data))
					c.Release()
				}
			}()
			b.SetBytes(LargeChunk)
			b.ReportAllocs()
			src := make([]byte, LargeChunk)
			for b.Loop() {
				_ = l.append(context.Background(), Stdout, src)
			}
			l.Seal()
			<-done
		})
	}
}

// Close wakes a Next that waits, as a stalled reader's does.
func TestCloseWakesTheReader(t *testing.T) {
	l := NewLog(Options{})
	defer l.Close()
	r, err := l.NewReader(0, false)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := r.Next(context.Background(), 100)
		ended <- err
	}()
	for waiting := false; !waiting; runtime.Gosched() {
		l.mu.Lock()
		waiting = r.waiting
		l.mu.Unlock()
	}
	r.Close()
	select {
	case err := <-ended:
		if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("Next still waits")
	}
}
