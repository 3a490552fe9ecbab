package lifetime

import (
	"sync"
	"time"
)

// Tombstones remember for a while which sandboxes expired, so that a late caller
// receives the reason. After a restart such a sandbox is only not found.
type Tombstones struct {
	mu    sync.Mutex
	ends  map[string]time.Time
	order []string
}

const maxTombstones = 10_000

// NewTombstones returns an empty set.
func NewTombstones() *Tombstones { return &Tombstones{ends: make(map[string]time.Time)} }

// Add records that the sandbox of this name expired at end.
func (t *Tombstones) Add(name string, end time.Time) {
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

// Remove forgets a name.
func (t *Tombstones) Remove(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// The name stays in order; a second entry there is harmless.
	delete(t.ends, name)
}

// Get returns when the sandbox of this name expired. It reports false if that is
// not known.
func (t *Tombstones) Get(name string) (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end, ok := t.ends[name]
	return end, ok
}
