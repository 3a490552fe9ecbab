package conformance

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// hop is a connection on the way to the sandbox that can be broken: the one
// between client and server, or the one between server and agent.
type hop struct {
	name string
	// client reaches the server over the hop.
	client *sandgate.Client
	// modes are the ways to break it.
	modes  []string
	proxy  *proxy // of the client hop
	suite  *Suite
	chance *rand.Rand
}

// hops are the two, as the ends of cases' names.
const (
	clientHop = "client_hop"
	innerHop  = "inner_hop"
)

// hop makes one that ends with the case.
func (s *Suite) hop(ctx context.Context, t T, name, test string) *hop {
	t.Helper()
	h := &hop{name: name, client: s.client, suite: s, chance: s.chance(test + name), modes: []string{"break"}}
	if name == clientHop {
		h.proxy = newProxy(t, s.opts.Address)
		h.client = s.through(ctx, t, h.proxy)
		h.modes = []string{modeReset, modeClose, modeHole}
	}
	return h
}

// cut breaks all open connections; there must be one.
func (h *hop) cut(ctx context.Context, t T, mode string) {
	t.Helper()
	if h.inner(ctx, t, mode) == 0 {
		t.Errorf("%s: there was no connection to cut", mode)
	}
}

func (h *hop) inner(ctx context.Context, t T, mode string) int {
	t.Helper()
	if h.proxy != nil {
		return h.proxy.cut(mode)
	}
	n, err := h.suite.opts.CutInner(ctx)
	if err != nil {
		t.Errorf("cut the connections between server and sandbox: %v", err)
	}
	return n
}

// span bounds the bytes or the time after which a hop is cut.
type span struct {
	up    bool          // the direction that counts
	bytes int64         // the client hop is cut at a random byte up to this one
	delay time.Duration // the inner hop is cut after a random time up to this one
	times int           // how often at most
}

// during breaks the hop while work runs, and returns how often it did.
func (h *hop) during(ctx context.Context, t T, mode string, at span, work func()) int {
	t.Helper()
	left := at.times
	if h.proxy != nil {
		before := h.proxy.disarm()
		h.proxy.arm(plan{up: at.up, mode: mode, again: func() int64 {
			if left--; left < 0 {
				return 0
			}
			return 1 + h.chance.Int64N(at.bytes)
		}})
		work()
		return h.proxy.disarm() - before
	}
	ctx, cancel := context.WithCancelCause(ctx)
	cuts := 0
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for ; left > 0; left-- {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Duration(h.chance.Int64N(int64(at.delay)))):
			}
			if h.inner(ctx, t, mode) > 0 {
				cuts++
			}
		}
	})
	done := func() {
		cancel(errors.New("the work is done"))
		cutter.Wait()
	}
	defer done() // also when work ends the case
	work()
	done()
	return cuts
}

// maxRounds is how often work is repeated that ends before a cut.
const maxRounds = 50

// rounds does work that may be cut n times, and again until one was cut. round returns
// how often it was.
func (h *hop) rounds(t T, mode string, n int, round func(i int) (cuts int)) {
	t.Helper()
	cuts := 0
	for i := 0; i < n || cuts == 0 && i < maxRounds; i++ {
		cuts += round(i)
	}
	if cuts == 0 {
		t.Errorf("%s: nothing was cut", mode)
	}
}

// sandbox returns a handle of the shared sandbox over the hop.
func (h *hop) sandbox(ctx context.Context, t T) *sandgate.Sandbox {
	t.Helper()
	shared := h.suite.sandbox(ctx, t, nil)
	over := h.client.Sandbox(shared.ID())
	over.Incarnation = shared.Incarnation
	return over
}

// both makes a case for each hop.
func both(name string, run func(context.Context, T, *hop)) []Case {
	var cases []Case
	for _, hop := range []string{clientHop, innerHop} {
		cases = append(cases, Case{Name: name + "_" + hop, hook: hop == innerHop, run: func(ctx context.Context, t T, s *Suite) {
			t.Helper()
			run(ctx, t, s.hop(ctx, t, hop, name))
		}})
	}
	return cases
}
