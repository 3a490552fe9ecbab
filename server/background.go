package server

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/events"
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

// lead does what one of the servers that share a substrate does, until the server
// halts.
func (s *Server) lead() {
	ctx, cancel := s.untilHalt()
	defer cancel()
	if l, ok := s.provider.(providers.Coordinator); ok {
		l.Lead(ctx, s.leadOnce)
		return
	}
	s.leadOnce(ctx)
}

// leadOnce observes all sandboxes and sends webhooks, and deletes expired sandboxes
// unless all servers do, until ctx ends.
func (s *Server) leadOnce(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // also after a panic
	work.Go(func() { s.newObserver().Run(ctx) })
	work.Go(func() { s.webhooks.Run(ctx) })
	if s.allReap() {
		<-ctx.Done()
		return
	}
	s.reapRounds(ctx)
}

// allReap reports whether all servers delete expired sandboxes: a leader that may be
// stopped without being replaced must not keep sandboxes beyond their lifetimes.
func (s *Server) allReap() bool {
	l, ok := s.provider.(providers.Coordinator)
	return ok && !l.Lapses()
}

// reap deletes expired sandboxes until the server halts.
func (s *Server) reap() {
	ctx, cancel := s.untilHalt()
	defer cancel()
	s.reapRounds(ctx)
}

// reapRounds reaps until ctx ends.
func (s *Server) reapRounds(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Timing.ReapInterval)
	defer tick.Stop()
	for {
		begun := time.Now()
		err := fault.Catch(func() error { return s.reaper.Round(ctx) })
		s.metrics.ReapSeconds.Observe(time.Since(begun).Seconds())
		if err != nil && ctx.Err() == nil {
			s.metrics.ReapFailures.Inc()
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
	s.metrics.ReapedOne(byTTL, s.clock.Since(info.ExpireTime()))
	reason := events.IdleTTL
	if byTTL {
		reason = events.TTL
	}
	s.journal.Note(events.New(events.Ended, info, reason))
}

// recheck runs until the server stops.
func (s *Server) recheck() {
	tick := time.NewTicker(s.cfg.Timing.Recheck)
	defer tick.Stop()
	for {
		select {
		case <-s.halt:
			return
		case <-tick.C:
			s.gate.Recheck()
		}
	}
}

// recordExpired records a sandbox that the reaper deleted. A sandbox that a caller
// cleans up has that caller's records.
func (s *Server) recordExpired(ctx context.Context, info providers.Info) {
	if call.Of(ctx).RequestID != "" {
		return
	}
	// The sandbox is gone either way.
	_ = s.audit.Record(ctx, audit.Record{
		Time: time.Now(), Phase: audit.Ended, Principal: "sandgate", Tenant: info.Spec.Tenant,
		Operation: "Expire", SandboxID: info.Spec.ID, Code: codes.OK.String(),
	})
}
