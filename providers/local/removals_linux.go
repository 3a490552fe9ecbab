package local

import (
	"errors"
	"sync"
	"time"
)

// removals is the retry queue of sandboxes that could not be removed yet, by
// the name of their lock.
type removals struct {
	mu      sync.Mutex
	pending map[string]*pendingRemoval
	changed chan struct{} // wakes the retry loop
}

type pendingRemoval struct {
	// incarnation is the one to remove. Another server may have removed it, and have
	// created the next one. Empty: none is known.
	incarnation string
	decided     bool   // it must be removed, whatever phase its record has
	reason      string // for callers; empty during the first attempt
	failures    int
	again       time.Time
	running     bool // an attempt continues in the background
}

func newRemovals() *removals {
	return &removals{pending: make(map[string]*pendingRemoval), changed: make(chan struct{}, 1)}
}

// of reports whether a sandbox must be removed whatever phase its record has, and why
// it could not be removed, or "". The incarnation is the one that exists, or empty if
// its record cannot be read.
func (r *removals) of(name, incarnation string) (decided bool, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.pending[name]
	switch {
	case f == nil:
		return false, ""
	case incarnation == "" || f.incarnation == "" || f.incarnation == incarnation:
		return f.decided, f.reason
	case !f.running:
		delete(r.pending, name) // Another server has removed it.
	}
	return false, ""
}

// detached records that an attempt continues in the background.
func (r *removals) detached(name, incarnation string, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.entry(name, incarnation)
	f.running = true
	var failed *removalError
	if errors.Is(cause, errSlowRemoval) && errors.As(cause, &failed) {
		f.reason = failed.Error()
	}
}

// attempted records the result of an attempt, and returns how many failed in a
// row.
func (r *removals) attempted(name, incarnation string, err error) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.pending, name)
		return 0
	}
	f := r.entry(name, incarnation)
	f.running = false
	f.reason = err.Error()
	f.postpone()
	r.wake()
	return f.failures
}

// decide records the decision to remove a sandbox, whose record may not have been
// written.
func (r *removals) decide(name, incarnation string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.entry(name, incarnation)
	f.decided, f.running = true, true // until the attempt that follows has ended
}

// later postpones a sandbox whose lock is held.
func (r *removals) later(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.pending[name]; f != nil && !f.running {
		f.postpone()
	}
}

func (f *pendingRemoval) postpone() {
	f.again = time.Now().Add(min(firstRemovalRetry<<min(f.failures, 20), lastRemovalRetry))
	f.failures++
}

// postpone leaves a removal to the retry loop.
func (r *removals) postpone(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entry(name, "")
	r.wake()
}

// forget drops a sandbox that needs no more removal.
func (r *removals) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.pending[name]; f != nil && !f.running {
		delete(r.pending, name)
	}
}

// entry returns the entry of an incarnation. It needs r.mu.
func (r *removals) entry(name, incarnation string) *pendingRemoval {
	f := r.pending[name]
	if f == nil || incarnation != "" && f.incarnation != "" && f.incarnation != incarnation {
		f = &pendingRemoval{}
		r.pending[name] = f
	}
	if incarnation != "" {
		f.incarnation = incarnation
	}
	return f
}

func (r *removals) wake() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// due returns the names to retry now, and when the next one is due.
func (r *removals) due(now time.Time) (names []string, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, f := range r.pending {
		switch {
		case f.running:
		case !f.again.After(now):
			names = append(names, name)
		case next.IsZero() || f.again.Before(next):
			next = f.again
		}
	}
	return names, next
}
