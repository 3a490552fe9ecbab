package quota

import (
	"errors"
	"testing"
)

func TestRequests(t *testing.T) {
	const limit = 10 * requestBytes
	r := NewRequests(limit)
	cut := make(map[*Request]error)
	expect := func(tenant string, c *Received) *Request {
		t.Helper()
		var q *Request
		q, err := r.Expect(tenant, c, c.Pending(), func(exceeded error) { cut[q] = exceeded })
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	isCut := func(q *Request) bool { return cut[q] != nil }
	var one, two, proxied Received
	first := expect("a", &one)
	one.Add(4 * requestBytes)
	second := expect("a", &two)
	two.Add(3 * requestBytes)
	if isCut(first) || isCut(second) {
		t.Fatal("a call below the bound was cut")
	}
	// What a handler takes on a connection does not count.
	two.Add(5 * requestBytes)
	if !isCut(first) || isCut(second) {
		t.Error("the oldest call was not cut alone")
	}
	if err := cut[first]; !isBeyond(err, MaxRequestBytes, "tenant") {
		t.Errorf("cut by %v", err)
	}
	if err := first.Arrived(1, 0); !isBeyond(err, MaxRequestBytes, "tenant") {
		t.Errorf("the message of a cut call arrived: %v", err)
	}
	two.Take(6 * requestBytes)
	two.Add(6 * requestBytes)
	if isCut(second) {
		t.Error("bytes that a handler took were counted")
	}
	// Another tenant has its own.
	neighbour := expect("b", &proxied)
	proxied.Add(8 * requestBytes)
	if isCut(second) || isCut(neighbour) {
		t.Error("tenants share a bound")
	}
	// What has arrived is not cut. The rest waits.
	if err := second.Arrived(8*requestBytes, 1); err != nil {
		t.Error(err)
	}
	if _, err := r.Expect("a", &one, one.Pending(), nil); !isBeyond(err, MaxRequestBytes, "tenant") {
		t.Errorf("a call beyond the bound: %v", err)
	}
	second.Release()
	second.Release()
	third := expect("a", &one)
	if err := third.Arrived(20*requestBytes, 0); !isBeyond(err, MaxRequestBytes, "tenant") {
		t.Errorf("a message beyond the bound: %v", err)
	}
	for _, q := range []*Request{first, third, neighbour} {
		q.Release()
	}
	if len(r.tenants) != 0 || len(one.arrivals)+len(two.arrivals)+len(proxied.arrivals) != 0 {
		t.Errorf("left: %v", r.tenants)
	}
	if q, err := NewRequests(0).Expect("a", &one, 0, nil); q != nil || errors.Join(err, q.Arrived(1<<40, 0)) != nil {
		t.Errorf("no bound: %v, %v", q, err)
	}
}
