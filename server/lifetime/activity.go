package lifetime

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/limit"
)

// Activity writes to the provider when sandboxes were last used: at most every
// min(idle_ttl/4, 60 s) per sandbox, and almost never in the path of a call.
type Activity struct {
	provider providers.Provider
	log      *slog.Logger
	writers  limit.Slots // of writes in the background
	pending  sync.WaitGroup
}

const (
	maxActivityInterval = time.Minute
	maxActivityWriters  = 8
	activityTimeout     = 10 * time.Second
	// renewPause is how long calls go on without writing activity after a write has
	// failed, so that they do not wait one after the other.
	renewPause = 5 * time.Second
)

// NewActivity returns an Activity that writes to p.
func NewActivity(p providers.Provider, log *slog.Logger) *Activity {
	return &Activity{provider: p, log: log, writers: limit.New(maxActivityWriters)}
}

// activityInterval returns how far the provider's record may lag behind.
func activityInterval(idle time.Duration) time.Duration {
	if idle <= 0 {
		return maxActivityInterval
	}
	return min(idle/4, maxActivityInterval)
}

// Note writes a sandbox's activity in the background if the provider's record is
// too old. If all writers are busy it does nothing: the next Note will.
func (a *Activity) Note(ctx context.Context, c *agentconn.Conn, at time.Time) {
	before := c.Activity.Written.Load()
	if at.Sub(time.Unix(0, before)) < activityInterval(c.Info().Spec.IdleTTL) {
		return
	}
	if !a.writers.TryAcquire() {
		return
	}
	if !c.Activity.Written.CompareAndSwap(before, at.UnixNano()) {
		a.writers.Release()
		return
	}
	ctx = context.WithoutCancel(ctx)
	a.pending.Go(func() {
		defer a.writers.Release()
		if err := fault.Catch(func() error { return a.Write(ctx, c, at) }); err != nil {
			c.Activity.Written.CompareAndSwap(at.UnixNano(), before)
			a.log.WarnContext(ctx, "activity could not be written", "sandbox_id", c.Key.ID, "error", err)
		}
	})
}

// NoteCalls notes the activity of the calls of open connections, running or
// ended.
func (a *Activity) NoteCalls(ctx context.Context, open []*agentconn.Conn, now time.Time) {
	for _, c := range open {
		if c.InUse() {
			a.Note(ctx, c, now)
		} else if last := c.LastCall(); last > c.Activity.Written.Load() {
			a.Note(ctx, c, time.Unix(0, last))
		}
	}
}

// Renew is Note for a call that is about to be made. If the sandbox may expire
// before a write in the background ends, it writes at once, so that the provider
// rejects the deletion of what the call uses. It returns an error if the sandbox
// is gone or ctx has ended.
func (a *Activity) Renew(ctx context.Context, c *agentconn.Conn, at time.Time) error {
	failing := func() bool {
		failed := c.Activity.FailedAt.Load()
		return failed != nil && time.Since(*failed) < renewPause
	}
	due := func() bool {
		idle := c.Info().Spec.IdleTTL
		return idle > 0 && at.Sub(time.Unix(0, c.Activity.Confirmed.Load())) >= idle/2 && !failing()
	}
	if !due() {
		if !failing() {
			a.Note(ctx, c, at)
		}
		return nil
	}
	if err := c.Activity.Writing.Acquire(ctx); err != nil {
		return err
	}
	defer c.Activity.Writing.Release()
	if !due() {
		return nil
	}
	err := a.Write(ctx, c, at)
	switch {
	case err == nil || errors.Is(err, providers.ErrNotFound) || errors.Is(err, providers.ErrNotActive):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		// A provider that cannot write cannot delete either.
		now := time.Now()
		c.Activity.FailedAt.Store(&now)
		a.log.WarnContext(ctx, "activity could not be written", "sandbox_id", c.Key.ID, "error", err)
		return nil
	}
}

// Write writes a sandbox's activity and returns once the provider has stored it.
func (a *Activity) Write(ctx context.Context, c *agentconn.Conn, at time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, activityTimeout)
	defer cancel()
	info, err := a.provider.Update(ctx, c.Key.Name, providers.Change{LastActivity: at})
	if err != nil {
		return err
	}
	c.SetInfo(info)
	for now := at.UnixNano(); ; {
		before := c.Activity.Confirmed.Load()
		if before >= now || c.Activity.Confirmed.CompareAndSwap(before, now) {
			return nil
		}
	}
}

// Wait returns when all writes in the background have ended.
func (a *Activity) Wait() { a.pending.Wait() }
