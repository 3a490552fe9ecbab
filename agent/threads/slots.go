package threads

import (
	"context"
	"sync"
	"time"
)

// lendTime is how long a slot is held before others can have it.
const lendTime = 100 * time.Millisecond

// Slots bounds how many goroutines do work of one kind at a time. Each of them can
// hold a thread in a system call. The holder of a slot must not wait for a caller or
// for another slot of the same Slots.
//
// A system call can take long, such as that on a file system that a command serves, or
// on a file with a lease. After lendTime its slot goes to others, and the holder has a
// lent one, of which there are a few. So a few calls of this kind delay no others. The
// threads of both are bounded.
type Slots struct{ free, lent chan struct{} }

// NewSlots returns n free slots, of which up to lent can be held by others meanwhile.
func NewSlots(n, lent int) *Slots {
	return &Slots{free: make(chan struct{}, n), lent: make(chan struct{}, lent)}
}

// Held returns how many goroutines hold a slot.
func (s *Slots) Held() int { return len(s.free) + len(s.lent) }

// Slot is a slot that a goroutine holds. A nil Slot is none.
type Slot struct {
	slots *Slots
	timer *time.Timer

	mu   sync.Mutex
	held chan struct{} // slots.free or slots.lent, nil while it is not held
}

// Take waits for a slot. Without an error, the caller must call Release.
func (s *Slots) Take(ctx context.Context) (*Slot, error) {
	select {
	case s.free <- struct{}{}:
		return s.begin(), nil
	default:
	}
	select {
	case s.free <- struct{}{}:
		return s.begin(), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Do calls f with a slot, for which it waits however long that takes.
func (s *Slots) Do(f func()) {
	s.free <- struct{}{}
	defer s.begin().Release()
	f()
}

func (s *Slots) begin() *Slot {
	slot := &Slot{slots: s, held: s.free}
	slot.mu.Lock()
	defer slot.mu.Unlock()
	slot.timer = time.AfterFunc(lendTime, slot.lend)
	return slot
}

// lend gives the slot to others, or retries later.
func (s *Slot) lend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != s.slots.free {
		return
	}
	select {
	case s.slots.lent <- struct{}{}:
		<-s.held
		s.held = s.slots.lent
	default:
		s.timer.Reset(lendTime)
	}
}

// Release frees the slot.
func (s *Slot) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Stop()
	<-s.held
	s.held = nil
}

// Without calls f, which waits for others, without the slot. It then waits for a slot,
// however long that takes.
func (s *Slot) Without(f func()) {
	if s == nil {
		f()
		return
	}
	s.Release()
	defer func() {
		s.slots.free <- struct{}{}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held = s.slots.free
		s.timer.Reset(lendTime)
	}()
	f()
}

type slotKey struct{}

// With returns a context that carries a slot.
func With(ctx context.Context, s *Slot) context.Context { return context.WithValue(ctx, slotKey{}, s) }

// Of returns the slot that ctx carries, else nil.
func Of(ctx context.Context) *Slot {
	s, _ := ctx.Value(slotKey{}).(*Slot)
	return s
}
