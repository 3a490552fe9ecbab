// Package clocktest is a clock for tests.
package clocktest

import (
	"sync"
	"time"
)

// Clock is a wall clock that can be set, and a monotonic one that cannot.
type Clock struct {
	mu   sync.Mutex
	wall time.Time
	mono time.Duration
}

// New returns a Clock with the present time.
func New() *Clock { return &Clock{wall: time.Now().Round(0)} }

// Read returns the time of both clocks.
func (f *Clock) Read() (time.Time, time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wall, f.mono
}

// Pass advances both clocks.
func (f *Clock) Pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall, f.mono = f.wall.Add(d), f.mono+d
}

// Set moves the wall clock alone.
func (f *Clock) Set(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall = f.wall.Add(d)
}
