package search

import (
	"context"
	"sync"
)

const (
	// MaxSearches is how many searches run at a time; others wait.
	MaxSearches = 3
	// maxSearchers is how many files one search reads at a time. Each of them, and
	// the walk, may hold a thread of the agent (package threads).
	maxSearchers = 2
	// maxAhead bounds, for all searches together, the matches of jobs that are not
	// first in their reply.
	maxAhead = 4 << 20
)

// Memory bounds the memory of all searches together. A job that is first in its reply
// never waits, so every search makes progress.
type Memory struct {
	slots chan struct{}

	mu      sync.Mutex
	changed sync.Cond
	held    int // bytes of matches that are not part of a reply yet
}

// NewMemory returns a Memory for all searches of an agent.
func NewMemory() *Memory {
	m := &Memory{slots: make(chan struct{}, MaxSearches)}
	m.changed.L = &m.mu
	return m
}

// Acquire waits until the search may run. Without an error, the caller must call
// release.
func (m *Memory) Acquire(ctx context.Context) (release func(), err error) {
	select {
	case m.slots <- struct{}{}:
		return func() { <-m.slots }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// reserve counts n bytes of a job, when there is room or the job is the first. It
// returns false if ctx is done before.
func (m *Memory) reserve(ctx context.Context, j *job, n int) bool {
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

// setFirst makes a job the first one in its reply.
func (m *Memory) setFirst(j *job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j.first = true
	m.changed.Broadcast()
}

// free stops counting what a job holds. The job must be done.
func (m *Memory) free(j *job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held -= j.bytes
	m.changed.Broadcast()
}

// wake makes all waiting jobs check their contexts.
func (m *Memory) wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed.Broadcast()
}
