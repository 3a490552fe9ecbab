package agentconn

import (
	"context"
	"time"
)

// RetryWindow decides whether to try again after a call to an agent failed. The
// zero value with a Length is ready.
type RetryWindow struct {
	// Length bounds the time from the first failure to the last attempt.
	Length time.Duration

	end     time.Time // zero before the first failure
	backoff time.Duration
}

const (
	firstBackoff = 20 * time.Millisecond
	maxBackoff   = time.Second
)

// Wait sleeps for the backoff and reports true if another attempt is worthwhile:
// err is transient, the window is open, and ctx has not ended.
func (w *RetryWindow) Wait(ctx context.Context, err error) bool {
	if !IsTransient(err) {
		return false
	}
	now := time.Now()
	if w.end.IsZero() {
		w.end, w.backoff = now.Add(w.Length), firstBackoff
	} else {
		w.backoff = min(2*w.backoff, maxBackoff)
	}
	if now.Add(w.backoff).After(w.end) {
		return false
	}
	timer := time.NewTimer(w.backoff)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Restart begins a new window with the next failure.
func (w *RetryWindow) Restart() { w.end = time.Time{} }
