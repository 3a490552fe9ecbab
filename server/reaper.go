package server

import (
	"context"
	"errors"
	"sync"
	"time"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	"github.com/sandgate/sandgate/providers"
)

const (
	reapPage    = 500
	reapWorkers = 8
	reapTimeout = 30 * time.Second
	// unreachableGrace is how long an idle sandbox is spared while its agent
	// cannot be asked: commands may run in it.
	unreachableGrace = 10 * time.Minute
)

// reap deletes sandboxes whose lifetime ended, until the server halts. What it
// needs to know is the provider's, so any replica, and a restarted server, goes
// on where another left off.
func (s *Server) reap() {
	ctx, cancel := s.untilHalt()
	defer cancel()
	tick := time.NewTicker(s.cfg.Timing.ReapInterval)
	defer tick.Stop()
	for {
		if err := guard(func() error { return s.reapAll(ctx) }); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "expired sandboxes could not all be looked for", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *Server) reapAll(ctx context.Context) error {
	slots := make(chan struct{}, reapWorkers)
	var work sync.WaitGroup
	defer work.Wait()
	q := providers.Query{Limit: reapPage}
	for {
		page, err := s.provider.List(ctx, q)
		if err != nil {
			return err
		}
		for _, info := range page.Sandboxes {
			if end := info.ExpireTime(); end.IsZero() || time.Now().Before(end) {
				continue
			}
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			work.Go(func() {
				defer func() { <-slots }()
				ctx, cancel := context.WithTimeout(ctx, reapTimeout)
				defer cancel()
				if _, err := s.expire(ctx, info); err != nil {
					s.log.WarnContext(ctx, "an expired sandbox could not be deleted",
						"tenant", info.Spec.Tenant, "sandbox_id", info.Spec.ID, "error", err)
				}
			})
		}
		if q.Token = page.Next; q.Token == "" {
			return nil
		}
	}
}

// expire deletes a sandbox whose lifetime seems to have ended, after it made
// sure: of a sandbox that is only idle, the agent is asked whether a command
// runs. It reports whether the sandbox was deleted.
func (s *Server) expire(ctx context.Context, info providers.Info) (bool, error) {
	b := box{tenant: info.Spec.Tenant, id: info.Spec.ID, name: info.Name}
	info, err := s.provider.Get(ctx, b.name)
	if err != nil {
		return false, ignoreNotFound(err)
	}
	end := info.ExpireTime()
	if end.IsZero() || time.Now().Before(end) {
		return false, nil
	}
	aged := info.Spec.TTL > 0 && !time.Now().Before(info.CreateTime.Add(info.Spec.TTL))
	switch {
	case info.State == providers.StateDeleting:
		return false, nil
	case info.State == providers.StateCreating && !aged:
		return false, nil
	case info.State == providers.StateActive && !aged:
		last, err := s.lastActivity(ctx, b)
		switch {
		case err != nil && time.Since(end) < unreachableGrace:
			return false, err
		case err == nil && last.Add(info.Spec.IdleTTL).After(time.Now()):
			_, err := s.provider.Update(ctx, b.name, providers.Change{LastActivity: last})
			return false, ignoreNotFound(err)
		}
	}
	return s.deleteExpired(ctx, b, info, end)
}

func (s *Server) deleteExpired(ctx context.Context, b box, info providers.Info, end time.Time) (bool, error) {
	// Before the deletion, so that no caller finds the sandbox gone without the
	// reason.
	s.expired.add(b.name, end)
	err := s.provider.Delete(ctx, b.name, providers.Condition{Incarnation: info.Incarnation})
	if errors.Is(err, providers.ErrReplaced) || errors.Is(err, providers.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.tunnels.drop(b.name)
	s.cfg.Audit.Audit(ctx, AuditRecord{
		Time: time.Now(), Principal: "sandgate", Tenant: b.tenant, Operation: "Expire", SandboxID: b.id, Code: "OK",
	})
	s.log.InfoContext(ctx, "sandbox expired", "tenant", b.tenant, "sandbox_id", b.id, "expire_time", end)
	return true, nil
}

// lastActivity asks the agent. A sandbox with a running command, or with a call
// under way here, is active now.
func (s *Server) lastActivity(ctx context.Context, b box) (time.Time, error) {
	t, err := s.tunnels.get(ctx, b)
	if err != nil {
		return time.Time{}, err
	}
	defer t.release()
	reply, err := t.agent.GetActivity(ctx, &agentv1.GetActivityRequest{})
	if err != nil {
		return time.Time{}, agentError(ctx, err)
	}
	if reply.GetRunningCommands() > 0 || t.users.Load() > 1 {
		return time.Now(), nil
	}
	last := reply.GetLastActivityTime().AsTime()
	if now := time.Now(); last.After(now) {
		// An agent cannot keep its sandbox alive by a clock from the future.
		last = now
	}
	return last, nil
}

func ignoreNotFound(err error) error {
	if errors.Is(err, providers.ErrNotFound) {
		return nil
	}
	return err
}

// tombstones remember for a while which sandboxes expired, so that a late
// caller learns why. They are a courtesy of this process: after a restart the
// sandbox is simply not found.
type tombstones struct {
	mu    sync.Mutex
	ends  map[string]time.Time
	order []string
}

const maxTombstones = 10_000

func newTombstones() *tombstones { return &tombstones{ends: make(map[string]time.Time)} }

func (t *tombstones) add(name string, end time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.ends[name]; !ok {
		t.order = append(t.order, name)
	}
	t.ends[name] = end
	if len(t.order) > maxTombstones {
		delete(t.ends, t.order[0])
		t.order = t.order[1:]
	}
}

func (t *tombstones) remove(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// The name stays in order; a second entry there is harmless.
	delete(t.ends, name)
}

func (t *tombstones) get(name string) (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end, ok := t.ends[name]
	return end, ok
}
