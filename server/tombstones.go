package server

import (
	"sync"
	"time"
)

// tombstones remember for a while which sandboxes expired, so that a late
// caller learns why. They are a courtesy of this process: after a restart the
// sandbox is simply not found.
type tombstones struct {
	mu    sync.Mutex
	ends  map[string]time.Time
	order []string
}

const maxTombstones = 10_000

func newTombstones() *tombstones { return &tombstones{ends: make(map[string]time.Time)} }

func (t *tombstones) add(name string, end time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.ends[name]; !ok {
		t.order = append(t.order, name)
	}
	t.ends[name] = end
	if len(t.order) > maxTombstones {
		delete(t.ends, t.order[0])
		t.order = t.order[1:]
	}
}

func (t *tombstones) remove(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// The name stays in order; a second entry there is harmless.
	delete(t.ends, name)
}

func (t *tombstones) get(name string) (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end, ok := t.ends[name]
	return end, ok
}
