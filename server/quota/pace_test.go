package quota

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The first refusals come at once, the next evenly, and none waits long, however many
// callers there are.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, o := NewPace(), Owner{Tenant: "a"}
		start := time.Now()
		for range freeRefusals {
			p.Wait(t.Context(), o)
		}
		if d := time.Since(start); d > refusalInterval {
			t.Errorf("the free ones took %v", d)
		}
		for range 20 {
			p.Wait(t.Context(), o)
		}
		if d, want := time.Since(start), 20*refusalInterval; d < want-refusalInterval || d > want+refusalInterval {
			t.Errorf("20 more took %v, want %v", d, want)
		}
		other := time.Now()
		p.Wait(t.Context(), Owner{Tenant: "b"})
		if d := time.Since(other); d != 0 {
			t.Errorf("another tenant waited %v", d)
		}
		var work sync.WaitGroup
		begin := time.Now()
		for range maxWaiting {
			work.Go(func() {
				p.Wait(t.Context(), o)
				if d := time.Since(begin); d > maxRefusalWait {
					t.Errorf("one waited %v", d)
				}
			})
		}
		work.Wait()
		time.Sleep(time.Minute)
		quiet := time.Now()
		for range freeRefusals {
			p.Wait(t.Context(), o)
		}
		if d := time.Since(quiet); d > refusalInterval {
			t.Errorf("after a pause the free ones took %v", d)
		}
	})
}

// A caller that leaves does not wait on, and what waits is bounded.
func TestPaceIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, o := NewPace(), Owner{Tenant: "a"}
		ctx, cancel := context.WithCancelCause(t.Context())
		var work sync.WaitGroup
		start := time.Now()
		for range 2 * maxWaiting {
			work.Go(func() { p.Wait(ctx, o) })
		}
		synctest.Wait()
		if n := p.owners[o].waiting; n != maxWaiting {
			t.Errorf("%d wait, want %d", n, maxWaiting)
		}
		cancel(nil)
		work.Wait()
		if d := time.Since(start); d != 0 || p.owners[o].waiting != 0 {
			t.Errorf("%v, %d wait", d, p.owners[o].waiting)
		}
		for i := range 3 * maxPaced {
			p.Wait(t.Context(), Owner{Tenant: fmt.Sprint(i)})
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(p.owners); n > maxPaced {
			t.Errorf("%d owners are remembered", n)
		}
	})
}
