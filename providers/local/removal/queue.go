package removal

import (
	"errors"
	"sync"
	"time"
)

// queue is the retry queue of sandboxes that could not be removed yet, by
// the name of their lock.
type queue struct {
	mu      sync.Mutex
	pending map[string]*entry
	changed chan struct{} // wakes the retry loop
}

type entry struct {
	// incarnation is the one to remove. Another server may have removed it, and have
	// created the next one. Empty: none is known.
	incarnation string
	decided     bool   // it must be removed, whatever phase its record has
	reason      string // for callers; empty during the first attempt
	failures    int
	again       time.Time
	running     bool // an attempt continues in the background
}

func newQueue() *queue {
	return &queue{pending: make(map[string]*entry), changed: make(chan struct{}, 1)}
}

// of reports whether a sandbox must be removed whatever phase its record has, and why
// it could not be removed, or "". The incarnation is the one that exists, or empty if
// its record cannot be read.
func (q *queue) of(name, incarnation string) (decided bool, reason string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.pending[name]
	switch {
	case f == nil:
		return false, ""
	case incarnation == "" || f.incarnation == "" || f.incarnation == incarnation:
		return f.decided, f.reason
	case !f.running:
		delete(q.pending, name) // Another server has removed it.
	}
	return false, ""
}

// detached records that an attempt continues in the background.
func (q *queue) detached(name, incarnation string, cause error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.open(name, incarnation)
	f.running = true
	var failed *Error
	if errors.Is(cause, ErrSlow) && errors.As(cause, &failed) {
		f.reason = failed.Error()
	}
}

// attempted records the result of an attempt, and returns how many failed in a
// row.
func (q *queue) attempted(name, incarnation string, err error) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err == nil {
		delete(q.pending, name)
		return 0
	}
	f := q.open(name, incarnation)
	f.running = false
	f.reason = err.Error()
	f.postpone()
	q.wake()
	return f.failures
}

// decide records the decision to remove a sandbox, whose record may not have been
// written.
func (q *queue) decide(name, incarnation string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.open(name, incarnation)
	f.decided, f.running = true, true // until the attempt that follows has ended
}

// later postpones a sandbox whose lock is held.
func (q *queue) later(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f := q.pending[name]; f != nil && !f.running {
		f.postpone()
	}
}

func (f *entry) postpone() {
	f.again = time.Now().Add(min(firstRetry<<min(f.failures, 20), lastRetry))
	f.failures++
}

// postpone leaves a removal to the retry loop.
func (q *queue) postpone(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open(name, "")
	q.wake()
}

// forget drops a sandbox that needs no more removal.
func (q *queue) forget(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f := q.pending[name]; f != nil && !f.running {
		delete(q.pending, name)
	}
}

// open returns the entry of an incarnation. It needs q.mu.
func (q *queue) open(name, incarnation string) *entry {
	f := q.pending[name]
	if f == nil || incarnation != "" && f.incarnation != "" && f.incarnation != incarnation {
		f = &entry{}
		q.pending[name] = f
	}
	if incarnation != "" {
		f.incarnation = incarnation
	}
	return f
}

func (q *queue) wake() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// due returns the names to retry now, and when the next one is due.
func (q *queue) due(now time.Time) (names []string, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, f := range q.pending {
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
