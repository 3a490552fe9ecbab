package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/fault"
)

const (
	reapPage = 500
	// reapAsks and reapDeletes bound how many agents are asked, and how many
	// sandboxes are deleted, at the same time. Most of both is waiting.
	reapAsks    = 128
	reapDeletes = 32
	// askTimeout keeps agents that do not answer, such as those of a node that
	// is gone, from making other sandboxes late.
	askTimeout    = 10 * time.Second
	deleteTimeout = 30 * time.Second
	// askAgain is how old an agent's answer may be when its sandbox is deleted.
	askAgain = time.Second
	// reapPause is how long one is left alone that could not be asked.
	reapPause = 30 * time.Second
	// unreachableGrace is how long an idle sandbox is spared while its agent
	// cannot be asked: commands may run in it.
	unreachableGrace = 10 * time.Minute
)

// errUnasked: the agent of an idle sandbox did not say whether a command runs.
var errUnasked = errors.New("its agent cannot be asked whether it is in use")

// reap deletes sandboxes whose lifetime ended, until the server halts. What it
// needs to know is the provider's, so any replica, and a restarted server, goes
// on where another left off. Where servers share a substrate one of them reaps.
func (s *Server) reap() {
	ctx, cancel := s.untilHalt()
	defer cancel()
	if l, ok := s.provider.(providers.Coordinator); ok {
		l.Lead(ctx, s.reapOn)
		return
	}
	s.reapOn(ctx)
}

// reapOn reaps until ctx ends.
func (s *Server) reapOn(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Timing.ReapInterval)
	defer tick.Stop()
	for {
		begun := time.Now()
		err := fault.Catch(func() error { return s.reapAll(ctx) })
		s.metrics.reapSeconds.Observe(time.Since(begun).Seconds())
		if err != nil && ctx.Err() == nil {
			s.metrics.reapFailures.Inc()
			s.log.WarnContext(ctx, "expired sandboxes could not all be looked for", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// reapAll is one round: it looks for what is due and returns when each of those
// was dealt with.
func (s *Server) reapAll(ctx context.Context) error {
	asks, deletes := make(chan struct{}, reapAsks), make(chan struct{}, reapDeletes)
	var work sync.WaitGroup
	defer work.Wait()
	reap := func(info providers.Info) error {
		if err := take(ctx, asks); err != nil {
			return err
		}
		work.Go(func() {
			err := fault.Catch(func() error { return s.reapOne(ctx, info, asks, deletes) })
			if errors.Is(err, errUnasked) {
				s.reapLater.add(info.Name, time.Now().Add(reapPause))
			}
			if err != nil && ctx.Err() == nil {
				s.metrics.reapFailures.Inc()
				s.log.WarnContext(ctx, "an expired sandbox could not be deleted",
					"tenant", info.Spec.Tenant, "sandbox_id", info.Spec.ID, "error", err)
			}
		})
		return nil
	}
	s.reapLater.forget(time.Now())
	late := backlog{random: s.random}
	q := providers.Query{Limit: reapPage, DueBy: s.clock.now()}
	for {
		page, err := s.provider.List(ctx, q)
		if err != nil {
			return err
		}
		for _, info := range page.Sandboxes {
			if info.State == providers.StateDeleting {
				continue
			}
			overdue := s.overdue(info)
			if s.reapLater.has(info.Name) && overdue < unreachableGrace {
				continue
			}
			if overdue > lateness {
				late.add(info)
				continue
			}
			if err := reap(info); err != nil {
				return err
			}
		}
		if q.Token = page.Next; q.Token == "" {
			break
		}
	}
	share := late.share(s.clock.up())
	if left := late.count - len(share); left > 0 {
		s.log.WarnContext(ctx, "sandboxes are long overdue; they are deleted little by little, in case the clock is wrong",
			"now", len(share), "later", left)
	}
	for _, info := range share {
		if err := reap(info); err != nil {
			return err
		}
	}
	return nil
}

// take waits for room in a channel that bounds work.
func take(ctx context.Context, slots chan<- struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reapOne holds a slot of those that ask, and gives it back.
func (s *Server) reapOne(ctx context.Context, info providers.Info, asks, deletes chan struct{}) error {
	due, info, err := func() (bool, providers.Info, error) {
		defer func() { <-asks }()
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		return s.isOver(ctx, info)
	}()
	if err != nil || !due {
		return err
	}
	asked := time.Now()
	if err := take(ctx, deletes); err != nil {
		return err
	}
	defer func() { <-deletes }()
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	if time.Since(asked) < askAgain {
		_, err = s.deleteExpired(ctx, info)
		if !errors.Is(err, providers.ErrInUse) {
			return err
		}
	}
	_, err = s.expire(ctx, info)
	return err
}

// expireTries is how often the server tries to delete an expired sandbox that is
// used meanwhile, before it leaves that to the next round.
const expireTries = 3

// expire deletes a sandbox whose lifetime has ended, after it made sure. It
// reports whether the sandbox was deleted.
func (s *Server) expire(ctx context.Context, info providers.Info) (bool, error) {
	for range expireTries {
		over, now, err := s.isOver(ctx, info)
		if err != nil || !over {
			return false, err
		}
		done, err := s.deleteExpired(ctx, now)
		if !errors.Is(err, providers.ErrInUse) {
			return done, err
		}
	}
	return false, nil
}

// aged reports whether a sandbox's TTL has passed.
func (s *Server) aged(info providers.Info) bool {
	return info.Spec.TTL > 0 && s.clock.since(info.CreateTime) >= info.Spec.TTL
}

// idled reports whether a sandbox's idle TTL has passed since the last activity
// that the provider knows.
func (s *Server) idled(info providers.Info) bool {
	return info.Spec.IdleTTL > 0 && s.clock.since(info.LastActivity) >= info.Spec.IdleTTL
}

// isOver makes sure that a sandbox's lifetime has ended: of one that is only
// idle, the agent is asked whether a command runs. It returns the sandbox as it
// is now.
func (s *Server) isOver(ctx context.Context, info providers.Info) (bool, providers.Info, error) {
	key := agentconn.KeyOf(info)
	info, err := s.provider.Get(ctx, key.Name)
	if err != nil {
		return false, info, ignoreNotFound(err)
	}
	aged := s.aged(info)
	switch {
	case !aged && !s.idled(info):
		return false, info, s.forgetLeap(ctx, info)
	case info.State == providers.StateDeleting:
		return false, info, nil
	case info.State == providers.StateCreating && !aged:
		return false, info, nil
	case info.State == providers.StateActive && !aged:
		idle, err := s.idleTime(ctx, key)
		switch {
		case err != nil && s.clock.since(info.LastActivity)-info.Spec.IdleTTL < unreachableGrace:
			return false, info, fmt.Errorf("%w: %w", errUnasked, err)
		case err == nil && idle < info.Spec.IdleTTL:
			return false, info, s.setActivity(ctx, info, idle)
		}
	}
	return true, info, nil
}

// forgetLeap corrects the record of a sandbox that only a leap of the wall clock
// made idle, so that a server that has not seen the leap spares it too.
func (s *Server) forgetLeap(ctx context.Context, info providers.Info) error {
	if info.Spec.IdleTTL == 0 || s.clock.now().Before(info.LastActivity.Add(info.Spec.IdleTTL)) {
		return nil
	}
	return s.setActivity(ctx, info, s.clock.since(info.LastActivity))
}

// setActivity tells the provider how long ago a sandbox was active.
func (s *Server) setActivity(ctx context.Context, info providers.Info, ago time.Duration) error {
	_, err := s.provider.Update(ctx, info.Name, providers.Change{LastActivity: s.clock.now().Add(-max(ago, 0))})
	if errors.Is(err, providers.ErrNotActive) {
		return nil
	}
	return ignoreNotFound(err)
}

// deleteExpired reports whether it was this call that deleted the sandbox. The
// error wraps providers.ErrInUse when the sandbox was used, or its lifetime
// changed, since it was looked at.
func (s *Server) deleteExpired(ctx context.Context, info providers.Info) (bool, error) {
	key, end := agentconn.KeyOf(info), info.ExpireTime()
	// Before the deletion, so that no caller finds the sandbox gone without the
	// reason.
	s.expired.add(key.Name, end)
	err := s.provider.Delete(ctx, key.Name, providers.Condition{Incarnation: info.Incarnation, IdleSince: info.LastActivity})
	if err != nil && !errors.Is(err, providers.ErrNotFound) {
		// It may live on.
		s.expired.remove(key.Name)
	}
	if errors.Is(err, providers.ErrReplaced) || errors.Is(err, providers.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.counts.forget(key.Name, info.Incarnation)
	s.agents.Drop(key.Name)
	s.recordExpired(ctx, key)
	s.metrics.reapedOne(s.aged(info))
	s.log.InfoContext(ctx, "sandbox expired", "tenant", key.Tenant, "sandbox_id", key.ID, "expire_time", end)
	return true, nil
}

// usedNow is the idle time of a sandbox that is in use.
const usedNow = time.Duration(-1)

// idleTime returns for how long the sandbox has been idle, as its agent measures
// it. A sandbox with a running command, or with a call in this server, is in use.
func (s *Server) idleTime(ctx context.Context, key agentconn.Key) (time.Duration, error) {
	t, err := s.agents.Inspect(ctx, key)
	if err != nil {
		return 0, err
	}
	defer t.EndInspection()
	reply, err := t.Agent.GetActivity(ctx, &agentv1.GetActivityRequest{})
	if err != nil {
		return 0, agentconn.Error(ctx, err)
	}
	if reply.GetRunningCommands() > 0 || t.InUse() {
		return usedNow, nil
	}
	return max(reply.GetIdleTime().AsDuration(), 0), nil
}

func ignoreNotFound(err error) error {
	if errors.Is(err, providers.ErrNotFound) {
		return nil
	}
	return err
}

// pauses are names to be left alone until a time.
type pauses struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func newPauses() *pauses { return &pauses{until: make(map[string]time.Time)} }

func (p *pauses) add(name string, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until[name] = until
}

func (p *pauses) has(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.until[name]
	return ok
}

// forget ends the pauses whose time has come.
func (p *pauses) forget(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.until, func(_ string, until time.Time) bool { return !now.Before(until) })
}
