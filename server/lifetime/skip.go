package lifetime

import (
	"maps"
	"sync"
	"time"
)

// skipList holds the names that rounds skip until a time.
type skipList struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func newSkipList() *skipList { return &skipList{until: make(map[string]time.Time)} }

func (l *skipList) add(name string, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until[name] = until
}

func (l *skipList) has(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.until[name]
	return ok
}

// prune removes the names whose time has come.
func (l *skipList) prune(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.until, func(_ string, until time.Time) bool { return !now.Before(until) })
}
