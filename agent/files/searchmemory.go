package files

import (
	"context"
	"sync"
)

const (
	// maxSearches is how many searches run at a time; others wait for a place.
	maxSearches = 4
	// maxSearchers is how many files one search reads at a time.
	maxSearchers = 4
	// maxAhead bounds, for all searches together, the matches of jobs that are
	// not first in the order of their reply.
	maxAhead = 4 << 20
)

// searchMemory bounds what all searches together hold, whatever the number of
// processors. A job that is first in the order of its reply never waits, so
// that every search goes on.
type searchMemory struct {
	places chan struct{}

	mu      sync.Mutex
	changed sync.Cond
	held    int // bytes of matches that are not part of a reply yet
}

func newSearchMemory() *searchMemory {
	m := &searchMemory{places: make(chan struct{}, maxSearches)}
	m.changed.L = &m.mu
	return m
}

// enter waits for a place. The caller must call leave if there is no error.
func (m *searchMemory) enter(ctx context.Context) (leave func(), err error) {
	select {
	case m.places <- struct{}{}:
		return func() { <-m.places }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// take counts n bytes of a job, once there is room or the job is the first. It
// returns false if ctx ended before.
func (m *searchMemory) take(ctx context.Context, j *job, n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.held+n > maxAhead && !j.first && ctx.Err() == nil {
		m.changed.Wait()
	}
	if ctx.Err() != nil {
		return false
	}
	m.held += n
	j.bytes += n
	return true
}

// lead makes a job the first one of its search.
func (m *searchMemory) lead(j *job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j.first = true
	m.changed.Broadcast()
}

// free stops counting what a job holds. The job must be done.
func (m *searchMemory) free(j *job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held -= j.bytes
	m.changed.Broadcast()
}

// wake makes all who wait look at their contexts.
func (m *searchMemory) wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed.Broadcast()
}
