package egress

import (
	"io"
	"sync"
)

// openSet holds everything that Close must close.
type openSet struct {
	mu     sync.Mutex
	all    map[io.Closer]struct{}
	closed bool
}

// add reports false, and closes c, if the set is closed.
func (o *openSet) add(c io.Closer) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		_ = c.Close()
		return false
	}
	if o.all == nil {
		o.all = make(map[io.Closer]struct{})
	}
	o.all[c] = struct{}{}
	return true
}

// remove closes c and forgets it.
func (o *openSet) remove(c io.Closer) {
	_ = c.Close()
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, c)
}

func (o *openSet) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for c := range o.all {
		_ = c.Close()
	}
}
