package removal

import (
	"errors"
	"testing"
	"time"
)

// A failed removal counts for its incarnation only, and is dropped when there is
// another one.
func TestFailedRemovalCountsForItsIncarnationOnly(t *testing.T) {
	r := newQueue()
	r.decide("a", "one")
	if decided, _ := r.of("a", "two"); decided {
		t.Error("another incarnation must be removed during an attempt")
	}
	r.attempted("a", "one", &Error{step: "unmount", cause: errors.New("busy")})
	for _, incarnation := range []string{"one", ""} {
		if decided, reason := r.of("a", incarnation); !decided || reason == "" {
			t.Errorf("incarnation %q: %v, %q", incarnation, decided, reason)
		}
	}
	if decided, reason := r.of("a", "two"); decided || reason != "" {
		t.Errorf("another incarnation: %v, %q", decided, reason)
	}
	if names, next := r.due(time.Now().Add(time.Hour)); len(names) > 0 || !next.IsZero() {
		t.Errorf("it is retried: %v", names)
	}
	r.decide("a", "one")
	r.attempted("a", "two", &Error{step: "unmount", cause: errors.New("busy")})
	if decided, reason := r.of("a", "two"); decided || reason == "" {
		t.Errorf("after a failure of the next one: %v, %q", decided, reason)
	}
}
