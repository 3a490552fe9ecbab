package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/record"
)

// kept is a pool that this server keeps.
type kept struct {
	providers.Pool
	wake chan struct{}

	mu       sync.Mutex
	starting map[string]time.Time // since when, by name: started by this server
	failures int                  // in a row
	failed   time.Time            // the last one
	notUntil time.Time            // nothing is started before
}

// run keeps a pool at its target until ctx ends.
func (c *Controller[M, C]) run(ctx context.Context, k *kept) {
	var starts sync.WaitGroup
	defer starts.Wait()
	tick := time.NewTicker(c.config.Interval)
	defer tick.Stop()
	var settled bool
	var seen uint64
	var looked time.Time
	for {
		if now := c.version.Load(); !settled || now != seen || time.Since(looked) >= c.config.IdleInterval {
			seen, looked = now, time.Now()
			settled = c.look(ctx, k, &starts)
		}
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-tick.C:
		}
	}
}

// look drops broken members, and as the leader also surplus ones, and starts what
// is missing. It reports whether the pool needed nothing.
func (c *Controller[M, C]) look(ctx context.Context, k *kept, starts *sync.WaitGroup) (settled bool) {
	starting := k.underWay() // before the list: a member may become ready meanwhile
	settled = len(starting) == 0
	have := len(starting)
	var ready []Member[M]
	var drop []Member[M]
	for m, err := range c.driver.Unclaimed(ctx, &k.Spec, false) {
		if err != nil {
			c.warn(ctx, "a pool cannot be listed", err, slog.String("template", k.Template))
			return false
		}
		_, own := starting[m.Name]
		switch {
		case m.State == Broken && !own:
			drop = append(drop, m)
		case m.State == Starting && !own && c.config.Lead != nil:
			// The server that led before has started it and is gone.
			drop = append(drop, m)
		case m.State == Ready:
			ready = append(ready, m)
			if !own {
				have++
			}
		}
	}
	// Where every server fills the pool, another one may have a higher target.
	if c.config.Lead != nil && len(ready) > k.Target {
		slices.SortFunc(ready, func(a, b Member[M]) int {
			return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
		})
		drop = append(drop, ready[k.Target:]...)
	}
	for _, m := range drop {
		settled = false
		if err := c.driver.Drop(ctx, m); err != nil {
			c.warn(ctx, "a member of a pool could not be deleted", err, slog.String("template", k.Template), slog.String("member", m.Name))
		}
	}
	missing, limit := k.Target-have, c.config.Parallel
	if k.failing() {
		limit = 1 // probes whether starts succeed again
	}
	if limit > 0 {
		missing = min(missing, limit-len(starting))
	}
	if k.Target > have {
		settled = false
	}
	for range missing {
		name, ok := k.begin()
		if !ok {
			break
		}
		starts.Go(func() { c.start(ctx, k, name) })
	}
	return settled
}

func (c *Controller[M, C]) start(ctx context.Context, k *kept, name string) {
	err := c.startMember(ctx, k.Pool, name)
	failures, delay := k.end(name, err, c.config)
	template := slog.String("template", k.Template)
	switch {
	case ctx.Err() != nil || errors.Is(err, ErrFull):
		return
	case err != nil:
		c.warn(ctx, "a pool could not be filled and is tried again later", err, template,
			slog.Int("failures", failures), slog.Duration("again_in", delay))
	case failures > 0:
		c.config.Log.LogAttrs(ctx, slog.LevelInfo, "a pool is being filled again", template, slog.Int("failures", failures))
	}
	if err == nil {
		c.Wake()
	}
}

// startMember turns a panic of the driver into an error, so that it does not end
// the server.
func (c *Controller[M, C]) startMember(ctx context.Context, p providers.Pool, name string) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return c.driver.Start(ctx, p, name)
}

// underWay returns the names of what this server is starting.
func (k *kept) underWay() map[string]time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.starting)
}

// failing reports whether the last start failed.
func (k *kept) failing() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failures > 0
}

// begin names a member to be started, unless it is too early after a failure.
func (k *kept) begin() (name string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if now.Before(k.notUntil) {
		return "", false
	}
	name = record.Random()
	k.starting[name] = now
	return name, true
}

// end notes how a start ended. It returns the failures in a row, those before a
// success, and the delay after a failure. Members that were started together and
// fail count once.
func (k *kept) end(name string, err error, config Config) (failures int, delay time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	began := k.starting[name]
	delete(k.starting, name)
	switch {
	case errors.Is(err, ErrFull):
	case err == nil:
		failures, k.failures = k.failures, 0
	default:
		// A success may have reset the count since the members were started.
		if k.failures == 0 || !began.Before(k.failed) {
			k.failures++
		}
		delay = min(config.FirstRetry<<min(k.failures-1, 10), config.LastRetry)
		k.failed = time.Now()
		k.notUntil = k.failed.Add(delay)
		failures = k.failures
	}
	return failures, delay
}
