package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sandgate/sandgate/bench/report"
)

// work is what is compared: its order to the driver, how many calls of one side
// follow each other, and how often each side has its turn. What a call leaves
// behind (an exec has the node clean up after it) slows the first of the next
// turn, whoever's that is; in a turn of several, the median does not show it.
type work struct {
	what, order string
	turn, turns int
}

func works() []work {
	small, large := strconv.Itoa(64<<10), strconv.Itoa(10<<20)
	return []work{
		{"execute true", "execute", 5, 6},
		{"read 100 lines", "read", 5, 4},
		{"write 2 kB", "write", 5, 4},
		{"grep 20 files", "grep", 5, 4},
		{"upload 64 KiB", "upload " + small, 5, 4},
		{"download 64 KiB", "download " + small, 5, 4},
		{"download 10 MiB", "download " + large, 2, 3},
		{"create → first command", creation, 1, 4},
		// The last one, since a peer may not come back from it.
		{"upload 10 MiB", "upload " + large, 2, 3},
	}
}

// creation is the order for a sandbox and its first command.
const creation = "first"

// side is one of those that do the same work.
type side struct {
	name string
	// do has a piece of work done and says how long it took.
	do   func(ctx context.Context, work string, limit time.Duration) (time.Duration, error)
	took report.Samples
	// refused is why it does this work no more.
	refused error
}

// turn has a side do a piece of work some times.
func (s *side) turn(ctx context.Context, w work, times int, settle func() error) (report.Samples, error) {
	var took report.Samples
	for range times {
		if w.order == creation {
			if err := settle(); err != nil {
				return nil, err
			}
		}
		d, err := s.do(ctx, w.order, waitTimeout)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			s.refused = err
			return took, nil
		}
		took = append(took, d)
	}
	return took, nil
}

// compare has all do the same work in turns: ours, each by another transport, and a
// peer. Every other turn goes backwards, so that nobody always follows the same
// one. Settle waits until no pod starts. What the peer cannot do is said in the
// table, with its own words.
func (b *bench) compare(ctx context.Context, ours []*side, peer *side, settle func() error) ([]report.Figure, error) {
	all := append(slices.Clone(ours), peer)
	for _, s := range all {
		if _, err := s.do(ctx, "open", opening); err != nil {
			return nil, fmt.Errorf("%s: opening a sandbox: %w", s.name, err)
		}
	}
	var figures []report.Figure
	starting := true // pods may be
	for _, w := range works() {
		for _, s := range all {
			s.took, s.refused = nil, nil
		}
		if starting {
			if err := settle(); err != nil {
				return figures, err
			}
		}
		starting = w.order == creation
		for i := range b.count(w.turns) + 1 {
			times := w.turn
			if i == 0 {
				times = 1 // it fills caches
			}
			slices.Reverse(all)
			for _, s := range all {
				if s.refused != nil {
					continue
				}
				took, err := s.turn(ctx, w, times, settle)
				if err != nil {
					return figures, err
				}
				if s.refused != nil && s != peer {
					return figures, fmt.Errorf("%s, %s: %w", s.name, w.what, s.refused)
				}
				if i > 0 {
					s.took = append(s.took, took...)
				}
			}
		}
		for i, s := range ours {
			f := report.Latency(w.what+", "+s.name+" | "+peer.name, s.took, peer.took, 0.5, report.AtMost(1), report.Bound{})
			if peer.refused != nil {
				f = report.Figure{What: f.What, Ours: f.Ours, Theirs: "failed"}
				if i == 0 {
					f.Note = peer.refused.Error()
				}
			}
			figures = append(figures, f)
		}
	}
	return figures, nil
}
