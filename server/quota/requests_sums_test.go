package quota

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// heldRequest is a call of the tests below.
type heldRequest struct {
	*Request
	conn *Received
	cuts int
	rest int // of its message
}

// checkRequests checks what all calls of a bound hold.
func checkRequests(t rapid.TB, r *Requests, conns []*Received, held []*heldRequest) {
	t.Helper()
	sum := make(map[*tenantRequests]int64)
	calls := make(map[*tenantRequests]int)
	for _, q := range held {
		sum[q.tenant] += q.bytes
		calls[q.tenant]++
		if q.cuts > 1 || (q.cuts == 1) != (q.exceeded != nil) {
			t.Fatalf("a call was cut %d times, by %v", q.cuts, q.exceeded)
		}
	}
	for i, c := range conns {
		expecting := 0
		for tenant, a := range c.arrivals {
			if a.bytes < 0 || a.calls.Len() == 0 {
				t.Fatalf("%d bytes arrive for %d calls", a.bytes, a.calls.Len())
			}
			sum[tenant] += a.bytes
			expecting += a.calls.Len()
		}
		if n := int(c.expecting.Load()); n != expecting {
			t.Fatalf("connection %d expects %d messages, not %d", i, n, expecting)
		}
	}
	for name, tenant := range r.tenants {
		if tenant.bytes != sum[tenant] || tenant.calls != calls[tenant] || tenant.bytes > r.limit {
			t.Fatalf("tenant %s holds %d bytes in %d calls, not %d in %d", name, tenant.bytes, tenant.calls, sum[tenant], calls[tenant])
		}
		delete(calls, tenant)
	}
	if len(calls) > 0 {
		t.Fatal("a tenant with calls was forgotten")
	}
}

// What a tenant holds is at any time the sum of its calls, and within the bound, in
// whatever order calls begin, receive, are taken and released.
func TestRequestsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 10 * requestBytes
		r := NewRequests(limit)
		conns := []*Received{{}, {}, {}}
		var held []*heldRequest
		pick := func() *heldRequest { return rapid.SampledFrom(held).Draw(t, "call") }
		release := func(q *heldRequest) {
			q.Release()
			held = slices.DeleteFunc(held, func(other *heldRequest) bool { return other == q })
		}
		t.Repeat(map[string]func(*rapid.T){
			"expect": func(t *rapid.T) {
				q := &heldRequest{conn: rapid.SampledFrom(conns).Draw(t, "connection"), rest: rapid.IntRange(0, limit).Draw(t, "size")}
				var err error
				q.Request, err = r.Expect(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tenant"), q.conn, q.conn.Pending(), func(error) { q.cuts++ })
				if err == nil {
					held = append(held, q)
				}
			},
			"receive": func(t *rapid.T) {
				rapid.SampledFrom(conns).Draw(t, "connection").Add(rapid.IntRange(0, 4*requestBytes).Draw(t, "bytes"))
			},
			"take": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip()
				}
				q := pick()
				q.conn.Add(q.rest)
				q.conn.Take(q.rest)
				cut := q.cuts > 0
				if err := q.Arrived(q.rest, rapid.IntRange(0, 100).Draw(t, "fields")); cut && err == nil {
					t.Fatal("the message of a cut call arrived")
				}
				release(q)
			},
			"arrive": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip()
				}
				if q := pick(); q.ofTenant != nil {
					q.conn.Add(q.rest)
					q.conn.Take(q.rest)
					_ = q.Arrived(q.rest, 0)
				}
			},
			"release": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip()
				}
				release(pick())
			},
			"": func(t *rapid.T) { checkRequests(t, r, conns, held) },
		})
	})
}

// Calls of several tenants do all of this at once, on connections of their own and on a
// shared one. Nothing is left of them, and a call whose message has arrived is not cut.
func TestNothingIsLeftOfConcurrentRequests(t *testing.T) {
	const limit, callers, rounds = 40 * requestBytes, 4, 300
	r := NewRequests(limit)
	conns := []*Received{{}}
	var work sync.WaitGroup
	var cuts, rejected atomic.Int64
	for i, tenant := range []string{"a", "b", "c"} {
		conns = append(conns, new(Received))
		own := []*Received{conns[0], conns[i+1], nil}
		for caller := range callers {
			random := rand.New(rand.NewPCG(uint64(i), uint64(caller)))
			work.Go(func() {
				for range rounds {
					conn, size := own[random.IntN(len(own))], random.IntN(20*requestBytes)
					var cut atomic.Int32
					q, err := r.Expect(tenant, conn, conn.Pending(), func(error) { cut.Add(1) })
					if err != nil {
						rejected.Add(1)
						continue
					}
					if conn != nil {
						conn.Add(size)
						conn.Pause()
						runtime.Gosched() // so that calls overlap with one processor, too
					}
					if random.IntN(3) > 0 { // else its caller gives up
						conn.Take(size)
						if err := q.Arrived(size, 0); err == nil && cut.Load() > 0 {
							t.Error("a call was cut whose message has arrived")
						}
					}
					q.Release()
					if n := cut.Load(); n > 1 {
						t.Errorf("a call was cut %d times", n)
					} else {
						cuts.Add(int64(n))
					}
				}
			})
		}
	}
	work.Wait()
	checkRequests(t, r, conns, nil)
	if len(r.tenants) != 0 || cuts.Load() == 0 {
		t.Errorf("%d calls were cut, %d rejected; left: %v", cuts.Load(), rejected.Load(), r.tenants)
	}
}
