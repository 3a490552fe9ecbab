package threads

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// No more goroutines than slots, free and lent, work at a time, whatever they do.
func TestSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, lent := rapid.IntRange(1, 4).Draw(t, "slots"), rapid.IntRange(0, 3).Draw(t, "lent")
		s := NewSlots(n, lent)
		var busy, most atomic.Int32
		work := func() {
			now := busy.Add(1)
			for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
			}
			busy.Add(-1)
		}
		var all sync.WaitGroup
		for _, kind := range rapid.SliceOfN(rapid.IntRange(0, 2), 1, 30).Draw(t, "calls") {
			all.Go(func() {
				if kind == 0 {
					s.Do(work)
					return
				}
				slot, err := s.Take(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				defer slot.Release()
				work()
				if kind == 2 {
					slot.lend()
					slot.Without(func() {})
					work()
					slot.lend()
				}
			})
		}
		all.Wait()
		if got := int(most.Load()); got > n+lent {
			t.Errorf("%d at a time, want at most %d", got, n+lent)
		}
		if got := s.Held(); got != 0 {
			t.Errorf("%d are still held", got)
		}
	})
}

// A slot that is held for long goes to another goroutine, as often as slots are lent.
func TestSlotsAreLent(t *testing.T) {
	s := NewSlots(1, 2)
	var held []*Slot
	for range 3 { // the first two are lent
		slot, err := s.Take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, slot)
	}
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	held[2].lend() // there is no more to lend
	cancel(gone)
	if _, err := s.Take(ctx); !errors.Is(err, gone) {
		t.Errorf("without a free slot: %v", err)
	}
	held[0].Release()
	fourth, err := s.Take(t.Context()) // the third is lent now
	if err != nil {
		t.Fatal(err)
	}
	for _, slot := range []*Slot{held[1], held[2], fourth} {
		slot.Release()
	}
	if got := s.Held(); got != 0 {
		t.Errorf("%d are still held", got)
	}
}
