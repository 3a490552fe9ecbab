package local

import (
	"log/slog"
	"time"
)

// laps are the times that the steps of a creation took, for its log record.
type laps struct {
	last  time.Time
	attrs []slog.Attr
}

func newLaps() *laps { return &laps{last: time.Now()} }

// step ends a step.
func (l *laps) step(name string) {
	now := time.Now()
	l.attrs = append(l.attrs, slog.Duration(name, now.Sub(l.last)))
	l.last = now
}
