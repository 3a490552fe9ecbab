package settings

import (
	"testing"

	"pgregory.net/rapid"
)

// distance is a metric, and one wrong character is found again.
func TestNearest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-z_]{0,12}`)
		a, b, c := word.Draw(t, "a"), word.Draw(t, "b"), word.Draw(t, "c")
		if d := distance(a, b); d != distance(b, a) || (d == 0) != (a == b) || d > distance(a, c)+distance(c, b) || d > max(len(a), len(b)) {
			t.Fatalf("%q %q %q: %d", a, b, c, d)
		}
	})
	names := []string{"max_ttl", "max_idle_ttl", "default_ttl"}
	for wrong, want := range map[string]string{"max_tll": "max_ttl", "maxidle_ttl": "max_idle_ttl", "defaultttl": "default_ttl", "colour_of_it": ""} {
		if got := nearest(wrong, names); got != want {
			t.Errorf("%s: %q, want %q", wrong, got, want)
		}
	}
}
