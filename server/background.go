package server

import (
	"context"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
)

const maintainInterval = 5 * time.Second

// background runs work that goes on until the server halts, and restarts it after
// a panic.
func (s *Server) background(name string, run func()) {
	for {
		err := fault.Catch(func() error { run(); return nil })
		if err == nil {
			return
		}
		s.log.Error("background work failed; it starts again", "work", name, "error", err)
		select {
		case <-s.halt:
			return
		case <-time.After(s.cfg.Timing.ReapInterval):
		}
	}
}

// untilHalt returns a context for work that belongs to no call.
func (s *Server) untilHalt() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	s.work.Go(func() {
		select {
		case <-s.halt:
			cancel(fault.ErrShuttingDown)
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(nil) }
}

// maintain notes the activity of calls and closes idle connections to agents.
func (s *Server) maintain() {
	ctx, cancel := s.untilHalt()
	defer cancel()
	tick := time.NewTicker(min(maintainInterval, max(s.cfg.Timing.AgentIdle/2, time.Millisecond)))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.activity.NoteCalls(ctx, s.agents.Live(), now)
			s.agents.CloseIdle(now)
		}
	}
}

// reap deletes expired sandboxes until the server halts. Of servers that share a
// substrate one reaps.
func (s *Server) reap() {
	ctx, cancel := s.untilHalt()
	defer cancel()
	if l, ok := s.provider.(providers.Coordinator); ok {
		l.Lead(ctx, s.reapRounds)
		return
	}
	s.reapRounds(ctx)
}

// reapRounds reaps until ctx ends.
func (s *Server) reapRounds(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Timing.ReapInterval)
	defer tick.Stop()
	for {
		begun := time.Now()
		err := fault.Catch(func() error { return s.reaper.Round(ctx) })
		s.metrics.reapSeconds.Observe(time.Since(begun).Seconds())
		if err != nil && ctx.Err() == nil {
			s.metrics.reapFailures.Inc()
			s.log.WarnContext(ctx, "the search for expired sandboxes failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sandboxExpired records and counts a sandbox that the reaper deleted.
func (s *Server) sandboxExpired(ctx context.Context, info providers.Info, byTTL bool) {
	s.recordExpired(ctx, info)
	s.metrics.reapedOne(byTTL, s.clock.Since(info.ExpireTime()))
}
