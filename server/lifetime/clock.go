package lifetime

import (
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// Clock measures the age of time stamps that providers store. Stamps are wall-
// clock times, since they outlive the process. But a wall clock leaps when it
// is set, or when the machine was suspended, and a leap makes nothing older.
// The monotonic clock distinguishes a leap from elapsed time.
//
// Clock knows only the leaps of this process's life. It subtracts a leap from
// the age of an earlier stamp. A clock that is set back makes stamps look
// younger, which extends lifetimes and ends none.
type Clock struct {
	read func() (wall time.Time, mono time.Duration)

	mu    sync.Mutex
	start time.Duration
	wall  time.Time
	mono  time.Duration
	leaps []leap
	// forward and back count all leaps.
	forward, back uint64
}

// leap is a step of the wall clock. It changes the age of stamps up to before.
type leap struct {
	before time.Time
	by     time.Duration
}

const (
	// minLeap is more than gradual clock adjustment between two readings.
	minLeap = 2 * time.Second
	// maxLeaps bounds memory. Beyond it the two oldest are merged.
	maxLeaps = 256
)

// NewClock returns a Clock that calls read, or reads the machine's clocks if read
// is nil.
func NewClock(read func() (time.Time, time.Duration)) *Clock {
	if read == nil {
		began := time.Now()
		read = func() (time.Time, time.Duration) {
			now := time.Now()
			return now.Round(0), now.Sub(began)
		}
	}
	c := &Clock{read: read}
	c.wall, c.mono = read()
	c.start = c.mono
	return c
}

// Now reads the clock. Call it regularly, so that no leap hides in a long time
// between two readings.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.observe()
}

// observe needs c.mu.
func (c *Clock) observe() time.Time {
	wall, mono := c.read()
	by := wall.Sub(c.wall) - (mono - c.mono)
	c.wall, c.mono = wall, mono
	switch {
	case by >= minLeap:
		c.forward++
		c.leaps = append(c.leaps, leap{before: wall.Add(-by), by: by})
		if len(c.leaps) > maxLeaps {
			c.leaps[1].by += c.leaps[0].by
			c.leaps = c.leaps[1:]
		}
	case by <= -minLeap:
		c.back++
		// A clock that is set forward and back has not leapt in sum.
		for back := -by; back > 0 && len(c.leaps) > 0; {
			last := &c.leaps[len(c.leaps)-1]
			if last.by > back {
				last.by -= back
				break
			}
			back -= last.by
			c.leaps = c.leaps[:len(c.leaps)-1]
		}
	}
	return wall
}

// Since returns the age of a stamp.
func (c *Clock) Since(stamp time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	age := c.observe().Sub(stamp.Round(0))
	for _, l := range c.leaps {
		if !stamp.After(l.before) {
			age -= l.by
		}
	}
	return age
}

// Leaps returns how often the wall clock leapt forward and back.
func (c *Clock) Leaps() (forward, back uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observe()
	return c.forward, c.back
}

// Up returns how long the Clock has existed.
func (c *Clock) Up() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observe()
	return c.mono - c.start
}

// Aged reports whether a sandbox's TTL has passed.
func (c *Clock) Aged(info providers.Info) bool {
	return info.Spec.TTL > 0 && c.Since(info.CreateTime) >= info.Spec.TTL
}

// idled reports whether a sandbox's idle TTL has passed since the last activity
// that the provider has stored.
func (c *Clock) idled(info providers.Info) bool {
	return info.Spec.IdleTTL > 0 && c.Since(info.LastActivity) >= info.Spec.IdleTTL
}
