package admission

import (
	"sync"

	"golang.org/x/time/rate"
)

// Refused credentials leave records at a bounded rate, or anyone who can
// connect could fill the disk.
const (
	refusalsPerSecond = 10
	refusalsBurst     = 100
)

// refusals decides which refused calls leave a log line and an audit record.
type refusals struct {
	limit *rate.Limiter

	mu         sync.Mutex
	suppressed int64
}

func newRefusals() *refusals {
	return &refusals{limit: rate.NewLimiter(refusalsPerSecond, refusalsBurst)}
}

// take reports whether this call is recorded, and how many before it were not.
func (r *refusals) take() (suppressed int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.limit.Allow() {
		r.suppressed++
		return 0, false
	}
	suppressed, r.suppressed = r.suppressed, 0
	return suppressed, true
}
