// Package limit bounds concurrent work.
package limit

import "context"

// Slots is a semaphore. Unlike that of golang.org/x/sync, it returns the cause of
// a context's end.
type Slots chan struct{}

// New returns n free slots.
func New(n int) Slots { return make(Slots, n) }

// Acquire waits for a slot, which must be released. It returns the cause of ctx's
// end.
func (s Slots) Acquire(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// TryAcquire takes a slot if one is free.
func (s Slots) TryAcquire() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

// Release frees a slot.
func (s Slots) Release() { <-s }
