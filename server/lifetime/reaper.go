// Package lifetime ends sandboxes whose TTL or idle TTL has passed, and records
// when they were last used. The provider stores all of its state, so any replica
// and a restarted server continue where another stopped.
package lifetime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/limit"
)

const (
	reapPage = 500
	// maxInspections and maxDeletions bound the concurrent requests of one round.
	// Most of both is waiting.
	maxInspections = 128
	maxDeletions   = 32
	// inspectTimeout keeps agents that do not answer, such as those of a lost node,
	// from delaying other sandboxes.
	inspectTimeout = 10 * time.Second
	deleteTimeout  = 30 * time.Second
	// freshFor is how long an agent's answer is good for a deletion.
	freshFor = time.Second
	// skipFor is how long rounds skip a sandbox whose agent did not answer.
	skipFor = 30 * time.Second
	// unreachableGrace is how long an idle sandbox is kept while its agent does not
	// answer: commands may run in it.
	unreachableGrace = 10 * time.Minute
)

// errNotInspected: the agent of an idle sandbox did not report whether a command
// runs.
var errNotInspected = errors.New("its agent does not report whether it is in use")

// Config configures a Reaper. All fields must be set.
type Config struct {
	Provider providers.Provider
	Agents   *agentconn.Set
	Clock    *Clock
	Log      *slog.Logger
	// Expired receives the sandboxes that the Reaper deletes.
	Expired *Tombstones
	// Random returns a number from 0 to n-1.
	Random func(n int) int
	// OnDelete is called for each sandbox that the Reaper has deleted, before
	// OnExpire, which is called for those whose lifetime had ended. byTTL is false
	// for an idle one.
	OnDelete func(info providers.Info)
	OnExpire func(ctx context.Context, info providers.Info, byTTL bool)
	// OnFailure is called for each expired sandbox that could not be deleted.
	OnFailure func()
}

// Reaper deletes sandboxes whose lifetime has ended.
type Reaper struct {
	cfg  Config
	skip *skipList
}

// NewReaper returns a Reaper. It does nothing by itself.
func NewReaper(cfg Config) *Reaper { return &Reaper{cfg: cfg, skip: newSkipList()} }

// Round looks for expired sandboxes and returns when each of them was dealt with.
func (r *Reaper) Round(ctx context.Context) error {
	inspections, deletions := limit.New(maxInspections), limit.New(maxDeletions)
	var work sync.WaitGroup
	defer work.Wait()
	reap := func(info providers.Info) error {
		if err := inspections.Acquire(ctx); err != nil {
			return err
		}
		work.Go(func() {
			err := fault.Catch(func() error { return r.reap(ctx, info, inspections, deletions) })
			if errors.Is(err, errNotInspected) {
				r.skip.add(info.Name, time.Now().Add(skipFor))
			}
			if err != nil && ctx.Err() == nil {
				r.cfg.OnFailure()
				r.cfg.Log.WarnContext(ctx, "an expired sandbox could not be deleted",
					"tenant", info.Spec.Tenant, "sandbox_id", info.Spec.ID, "error", err)
			}
		})
		return nil
	}
	r.skip.prune(time.Now())
	late := backlog{random: r.cfg.Random}
	q := providers.Query{Limit: reapPage, DueBy: r.cfg.Clock.Now()}
	for {
		page, err := r.cfg.Provider.List(ctx, q)
		if err != nil {
			return err
		}
		for _, info := range page.Sandboxes {
			if info.State == providers.StateDeleting {
				continue
			}
			overdue := r.overdue(info)
			if r.skip.has(info.Name) && overdue < unreachableGrace {
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
	share := late.share(r.cfg.Clock.Up())
	if left := late.count - len(share); left > 0 {
		r.cfg.Log.WarnContext(ctx, "sandboxes are long overdue; they are deleted little by little, in case the clock is wrong",
			"now", len(share), "later", left)
	}
	for _, info := range share {
		if err := reap(info); err != nil {
			return err
		}
	}
	return nil
}

// reap deletes one sandbox. It owns a slot of inspections and releases it.
func (r *Reaper) reap(ctx context.Context, info providers.Info, inspections, deletions limit.Slots) error {
	over, info, err := func() (bool, providers.Info, error) {
		defer inspections.Release()
		ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
		defer cancel()
		return r.isOver(ctx, info)
	}()
	if err != nil || !over {
		return err
	}
	inspected := time.Now()
	if err := deletions.Acquire(ctx); err != nil {
		return err
	}
	defer deletions.Release()
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	if time.Since(inspected) < freshFor {
		_, err = r.deleteExpired(ctx, info)
		if !errors.Is(err, providers.ErrInUse) {
			return err
		}
	}
	_, err = r.Expire(ctx, info)
	return err
}

// expireTries is how often Expire tries to delete a sandbox that is used
// meanwhile.
const expireTries = 3

// Expire deletes a sandbox if its lifetime has ended, and reports whether it
// deleted it.
func (r *Reaper) Expire(ctx context.Context, info providers.Info) (bool, error) {
	for range expireTries {
		over, now, err := r.isOver(ctx, info)
		if err != nil || !over {
			return false, err
		}
		done, err := r.deleteExpired(ctx, now)
		if !errors.Is(err, providers.ErrInUse) {
			return done, err
		}
	}
	return false, nil
}

// CleanUp deletes a sandbox that has been idle for maxIdle, or whose lifetime has
// ended if maxIdle is nil. It reports whether it deleted it, or would have if
// dryRun is true.
func (r *Reaper) CleanUp(ctx context.Context, info providers.Info, maxIdle *time.Duration, dryRun bool) (bool, error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if maxIdle == nil {
		if !r.cfg.Clock.Aged(info) && !r.cfg.Clock.idled(info) {
			return false, nil
		}
		if dryRun {
			return true, nil
		}
		return r.Expire(ctx, info)
	}
	if r.cfg.Clock.Since(info.LastActivity) < *maxIdle || info.State == providers.StateDeleting || info.State == providers.StateCreating {
		return false, nil
	}
	if info.State == providers.StateActive {
		idle, err := r.idleTime(ctx, agentconn.KeyOf(info))
		if err != nil {
			return false, ignoreNotFound(err)
		}
		if idle < *maxIdle {
			return false, nil
		}
	}
	if dryRun {
		return true, nil
	}
	err := r.delete(ctx, info)
	if errors.Is(err, providers.ErrNotFound) || errors.Is(err, providers.ErrReplaced) || errors.Is(err, providers.ErrInUse) {
		return false, nil
	}
	return err == nil, err
}

// isOver reports whether a sandbox's lifetime has ended. It inspects the agent of
// an idle sandbox, in which a command may run. It returns the sandbox as it is
// now.
func (r *Reaper) isOver(ctx context.Context, info providers.Info) (bool, providers.Info, error) {
	key := agentconn.KeyOf(info)
	info, err := r.cfg.Provider.Get(ctx, key.Name)
	if err != nil {
		return false, info, ignoreNotFound(err)
	}
	aged := r.cfg.Clock.Aged(info)
	switch {
	case !aged && !r.cfg.Clock.idled(info):
		return false, info, r.correctLeap(ctx, info)
	case info.State == providers.StateDeleting:
		return false, info, nil
	case info.State == providers.StateCreating && !aged:
		return false, info, nil
	case info.State == providers.StateActive && !aged:
		idle, err := r.idleTime(ctx, key)
		switch {
		case err != nil && r.cfg.Clock.Since(info.LastActivity)-info.Spec.IdleTTL < unreachableGrace:
			return false, info, fmt.Errorf("%w: %w", errNotInspected, err)
		case err == nil && idle < info.Spec.IdleTTL:
			return false, info, r.setActivity(ctx, info, idle)
		}
	}
	return true, info, nil
}

// correctLeap corrects the record of a sandbox that only a leap of the wall clock
// made idle, so that a server that has not seen the leap keeps it too.
func (r *Reaper) correctLeap(ctx context.Context, info providers.Info) error {
	if info.Spec.IdleTTL == 0 || r.cfg.Clock.Now().Before(info.LastActivity.Add(info.Spec.IdleTTL)) {
		return nil
	}
	return r.setActivity(ctx, info, r.cfg.Clock.Since(info.LastActivity))
}

// setActivity writes how long ago a sandbox was active.
func (r *Reaper) setActivity(ctx context.Context, info providers.Info, ago time.Duration) error {
	_, err := r.cfg.Provider.Update(ctx, info.Name, providers.Change{LastActivity: r.cfg.Clock.Now().Add(-max(ago, 0))})
	if errors.Is(err, providers.ErrNotActive) {
		return nil
	}
	return ignoreNotFound(err)
}

// deleteExpired reports whether this call deleted the sandbox. The error wraps
// providers.ErrInUse if the sandbox was used, or its lifetime changed, since info
// was read.
func (r *Reaper) deleteExpired(ctx context.Context, info providers.Info) (bool, error) {
	end := info.ExpireTime()
	// Before the deletion, so that no caller finds the sandbox gone without the
	// reason.
	r.cfg.Expired.Add(info.Name, end)
	err := r.delete(ctx, info)
	if err != nil && !errors.Is(err, providers.ErrNotFound) {
		// It may live on.
		r.cfg.Expired.Remove(info.Name)
	}
	if errors.Is(err, providers.ErrReplaced) || errors.Is(err, providers.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	r.cfg.OnExpire(ctx, info, r.cfg.Clock.Aged(info))
	r.cfg.Log.InfoContext(ctx, "sandbox expired", "tenant", info.Spec.Tenant, "sandbox_id", info.Spec.ID, "expire_time", end)
	return true, nil
}

// delete deletes a sandbox unless it was used since info was read.
func (r *Reaper) delete(ctx context.Context, info providers.Info) error {
	err := r.cfg.Provider.Delete(ctx, info.Name, providers.Condition{Incarnation: info.Incarnation, IdleSince: info.LastActivity})
	if err != nil {
		return err
	}
	r.cfg.OnDelete(info)
	r.cfg.Agents.Drop(info.Name)
	return nil
}

// inUse is the idle time of a sandbox that is in use.
const inUse = time.Duration(-1)

// idleTime returns for how long the agent has been idle, by its own monotonic
// clock. A sandbox with a running
// command, or with a call through this server, is in use.
func (r *Reaper) idleTime(ctx context.Context, key agentconn.Key) (time.Duration, error) {
	c, err := r.cfg.Agents.Inspect(ctx, key, nil)
	if err != nil {
		return 0, err
	}
	defer c.EndInspection()
	reply, err := c.Agent.GetActivity(ctx, &agentv1.GetActivityRequest{})
	if err != nil {
		return 0, agentconn.Error(ctx, err)
	}
	if reply.GetRunningCommands() > 0 || c.InUse() {
		return inUse, nil
	}
	return max(reply.GetIdleTime().AsDuration(), 0), nil
}

func ignoreNotFound(err error) error {
	if errors.Is(err, providers.ErrNotFound) {
		return nil
	}
	return err
}
