package server

import (
	"sync"
	"testing"
	"time"
)

// fakeClock is a wall clock that can be set, and a monotonic one that cannot.
type fakeClock struct {
	mu   sync.Mutex
	wall time.Time
	mono time.Duration
}

func newFakeClock() *fakeClock { return &fakeClock{wall: time.Now().Round(0)} }

func (f *fakeClock) read() (time.Time, time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wall, f.mono
}

// pass lets time go by on both.
func (f *fakeClock) pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall, f.mono = f.wall.Add(d), f.mono+d
}

// set moves the wall clock alone.
func (f *fakeClock) set(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall = f.wall.Add(d)
}

func TestClockDoesNotCountLeaps(t *testing.T) {
	const hour = time.Hour
	for name, c := range map[string]struct {
		run  func(f *fakeClock, look func())
		want time.Duration
	}{
		"time passes":               {func(f *fakeClock, _ func()) { f.pass(3 * hour) }, 3 * hour},
		"one leap":                  {func(f *fakeClock, _ func()) { f.pass(hour); f.set(25 * hour); f.pass(hour) }, 2 * hour},
		"a leap before a long rest": {func(f *fakeClock, look func()) { f.set(25 * hour); look(); f.pass(30 * hour) }, 30 * hour},
		"two leaps":                 {func(f *fakeClock, look func()) { f.set(hour); look(); f.pass(hour); f.set(hour) }, hour},
		"forward and back":          {func(f *fakeClock, look func()) { f.set(9 * hour); look(); f.pass(hour); f.set(-9 * hour) }, hour},
		"forward and half back":     {func(f *fakeClock, look func()) { f.set(8 * hour); look(); f.set(-4 * hour); f.pass(hour) }, hour},
		"back":                      {func(f *fakeClock, _ func()) { f.pass(hour); f.set(-50 * hour) }, -49 * hour},
		"slewing":                   {func(f *fakeClock, _ func()) { f.pass(hour); f.set(time.Second) }, hour + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeClock()
			clock := newClock(f.read)
			stamp, _ := f.read()
			f.pass(time.Nanosecond)
			c.run(f, func() { clock.now() })
			if got := clock.since(stamp).Round(time.Microsecond); got != c.want {
				t.Errorf("the stamp is %v old, want %v", got, c.want)
			}
		})
	}
}

// A stamp from after a leap is as old as the clock says.
func TestClockCountsFromAfterALeap(t *testing.T) {
	f := newFakeClock()
	clock := newClock(f.read)
	f.set(25 * time.Hour)
	stamp := clock.now()
	f.pass(time.Hour)
	if got := clock.since(stamp); got != time.Hour {
		t.Errorf("the stamp is %v old", got)
	}
	for range 3 * maxLeaps {
		f.set(time.Hour)
		clock.now()
	}
	if got := clock.since(stamp); got > time.Hour {
		t.Errorf("after more leaps than are kept it is %v old", got)
	}
}
