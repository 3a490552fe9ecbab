package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/fault"
)

// activity writes to the provider when sandboxes were last used: at most every
// min(idle_ttl/4, 60 s) for each, and never on the path of a call.
type activity struct {
	provider providers.Provider
	log      *slog.Logger
	slots    chan struct{}
	pending  sync.WaitGroup
}

const (
	maxActivityInterval = time.Minute
	activityWriters     = 8
	activityTimeout     = 10 * time.Second
	// renewAgain is how long calls go on without writing activity after that has
	// failed, so that they do not wait one after the other.
	renewAgain       = 5 * time.Second
	maintainInterval = 5 * time.Second
)

func newActivity(p providers.Provider, log *slog.Logger) *activity {
	return &activity{provider: p, log: log, slots: make(chan struct{}, activityWriters)}
}

// interval is how far the provider's knowledge may lag behind.
func activityInterval(idle time.Duration) time.Duration {
	if idle <= 0 {
		return maxActivityInterval
	}
	return min(idle/4, maxActivityInterval)
}

// note writes a sandbox's activity if what the provider knows is too old. When
// all writers are busy it is left to the next time.
func (a *activity) note(ctx context.Context, t *agentconn.Conn, at time.Time) {
	before := t.Activity.Written.Load()
	if at.Sub(time.Unix(0, before)) < activityInterval(t.Info().Spec.IdleTTL) {
		return
	}
	select {
	case a.slots <- struct{}{}:
	default:
		return
	}
	if !t.Activity.Written.CompareAndSwap(before, at.UnixNano()) {
		<-a.slots
		return
	}
	ctx = context.WithoutCancel(ctx)
	a.pending.Go(func() {
		defer func() { <-a.slots }()
		if err := fault.Catch(func() error { return a.write(ctx, t, at) }); err != nil {
			t.Activity.Written.CompareAndSwap(at.UnixNano(), before)
			a.log.WarnContext(ctx, "activity could not be written", "sandbox_id", t.Key.ID, "error", err)
		}
	})
}

// renew is note for a call that is about to be made. Where the sandbox may be
// due before a note in the background is written, it writes at once, so that the
// provider refuses to delete what the call uses. An error means that the sandbox
// is gone, or that ctx has ended.
func (a *activity) renew(ctx context.Context, t *agentconn.Conn, at time.Time) error {
	failing := func() bool { return time.Since(time.Unix(0, t.Activity.FailedAt.Load())) < renewAgain }
	due := func() bool {
		idle := t.Info().Spec.IdleTTL
		return idle > 0 && at.Sub(time.Unix(0, t.Activity.Confirmed.Load())) >= idle/2 && !failing()
	}
	if !due() {
		if !failing() {
			a.note(ctx, t, at)
		}
		return nil
	}
	if err := take(ctx, t.Activity.Writing); err != nil {
		return err
	}
	defer func() { <-t.Activity.Writing }()
	if !due() {
		return nil
	}
	err := a.write(ctx, t, at)
	switch {
	case err == nil || errors.Is(err, providers.ErrNotFound) || errors.Is(err, providers.ErrNotActive):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		// A provider that cannot write cannot delete either.
		t.Activity.FailedAt.Store(time.Now().UnixNano())
		a.log.WarnContext(ctx, "activity could not be written", "sandbox_id", t.Key.ID, "error", err)
		return nil
	}
}

// write tells the provider.
func (a *activity) write(ctx context.Context, t *agentconn.Conn, at time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, activityTimeout)
	defer cancel()
	info, err := a.provider.Update(ctx, t.Key.Name, providers.Change{LastActivity: at})
	if err != nil {
		return err
	}
	t.SetInfo(info)
	for now := at.UnixNano(); ; {
		before := t.Activity.Confirmed.Load()
		if before >= now || t.Activity.Confirmed.CompareAndSwap(before, now) {
			return nil
		}
	}
}

// maintain looks after the tunnels: those in use keep their sandbox from being
// idle, those unused for long are closed.
func (s *Server) maintain() {
	ctx, cancel := s.untilHalt()
	defer cancel()
	tick := time.NewTicker(min(maintainInterval, max(s.cfg.Timing.TunnelIdle/2, time.Millisecond)))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.noteCalls(ctx, now)
			s.agents.CloseIdle(now)
		}
	}
}

// noteCalls notes the activity of calls, running or over.
func (s *Server) noteCalls(ctx context.Context, now time.Time) {
	for _, t := range s.agents.Live() {
		if t.InUse() {
			s.activity.note(ctx, t, now)
		} else if last := t.LastCall(); last > t.Activity.Written.Load() {
			s.activity.note(ctx, t, time.Unix(0, last))
		}
	}
}

// untilHalt returns a context for background work, which no call owns.
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
