package quota

import (
	"testing"
	"time"
)

// A caller that calls again at once when its calls are cut is read at the limit per
// second, and nobody else is slowed down.
func TestCutCallsArePaced(t *testing.T) {
	const limit = 10 * requestBytes
	r := NewRequests(limit)
	now := r.began.Add(time.Hour)
	r.now = func() time.Time { return now }
	cut := make(map[*Request]bool)
	expect := func(tenant string, c *Received) *Request {
		t.Helper()
		var q *Request
		q, err := r.Expect(tenant, c, c.Pending(), func(error) { cut[q] = true })
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	unread := func(when string, want time.Duration, conns ...*Received) {
		t.Helper()
		for i, c := range conns {
			if got := max(c.Pause(), 0); got != want {
				t.Errorf("%s: connection %d is not read for %v, want %v", when, i, got, want)
			}
		}
	}
	var flood, arriving, quiet, neighbour Received
	first := expect("a", &flood)
	flood.Add(4 * requestBytes)
	second := expect("a", &arriving)
	other := expect("b", &neighbour)
	unread("below the bound", 0, &flood, &arriving, &quiet, &neighbour)

	// The call holds five requestBytes, half of the limit.
	arriving.Add(5 * requestBytes)
	if !cut[first] {
		t.Fatal("the first call was not cut")
	}
	unread("after a cut", time.Second/2, &flood, &arriving)
	unread("after another's cut", 0, &quiet, &neighbour)

	// What is cut meanwhile adds up, to a bound.
	third := expect("a", &flood)
	flood.Add(8 * requestBytes)
	if !cut[second] {
		t.Fatal("the second call was not cut")
	}
	unread("after more cuts", maxPause, &flood, &arriving)

	// Another tenant's call shows that this connection is a proxy's.
	through := expect("b", &arriving)
	unread("of several tenants", 0, &arriving)
	unread("of one tenant", maxPause, &flood)

	now = now.Add(maxPause)
	unread("later", 0, &flood, &arriving)
	for _, q := range []*Request{first, second, third, other, through} {
		q.Release()
	}
}
