package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandgate/sandgate/providers"
)

// Config configures a Controller.
type Config struct {
	Log *slog.Logger
	// Check returns an error if no sandbox could be started for a pool.
	Check func(providers.Pool) error
	// Lead calls do while this server is the only one to fill the pool, and returns
	// when ctx has ended. Nil: every server fills the pools that it keeps.
	Lead func(ctx context.Context, p providers.Pool, do func(context.Context))
	// Drained, if set, deletes what else is left of pools that are not among these,
	// after their members.
	Drained func(context.Context, []providers.Pool) error
	// Parallel is how many members of a pool are started at once. 0: all.
	Parallel int
	// Interval is the time between two looks at a pool. Default: 2 s.
	Interval time.Duration
	// IdleInterval is the same for a pool at its target, where Changed reports
	// what happens to members. Default: Interval.
	IdleInterval time.Duration
	// RefillDelay is how long a refill leaves the first command of a claimed
	// sandbox alone.
	RefillDelay time.Duration
	// FirstRetry and LastRetry are the delays after failures in a row, which
	// double from one to the other. Defaults: 1 s and 1 min.
	FirstRetry, LastRetry time.Duration
}

// Controller keeps pools at their targets.
type Controller[M, C any] struct {
	driver Driver[M, C]
	config Config

	keeping sync.Mutex // held while the set of pools changes
	work    sync.WaitGroup
	// version grows when a pool may have changed.
	version atomic.Uint64

	mu   sync.Mutex
	kept []*kept
	stop context.CancelCauseFunc // nil while no pools are kept
}

// New returns a controller that keeps no pools yet.
func New[M, C any](driver Driver[M, C], config Config) *Controller[M, C] {
	setDefault(&config.Interval, 2*time.Second)
	setDefault(&config.IdleInterval, config.Interval)
	setDefault(&config.FirstRetry, time.Second)
	setDefault(&config.LastRetry, time.Minute)
	return &Controller[M, C]{driver: driver, config: config}
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

var errStopped = errors.New("the pools are not kept any more")

// Check checks a set of pools. The error names the pool and wraps ErrInvalid.
func Check(pools []providers.Pool, check func(providers.Pool) error) error {
	seen := make(map[string]bool, len(pools))
	for _, p := range pools {
		err := check(p)
		switch {
		case err != nil:
		case p.Target < 1:
			err = fmt.Errorf("target %d is below 1", p.Target)
		case seen[p.Template]:
			err = errors.New("the template has two pools")
		}
		seen[p.Template] = true
		if err != nil && !errors.Is(err, providers.ErrInvalid) {
			err = fmt.Errorf("%w: %w", err, providers.ErrInvalid)
		}
		if err != nil {
			return fmt.Errorf("pool of template %q: %w", p.Template, err)
		}
	}
	return nil
}

// Keep replaces the set of pools. It drops what none of them needs and fills them
// in the background, until the next Keep or Close.
func (c *Controller[M, C]) Keep(ctx context.Context, pools []providers.Pool) error {
	if err := Check(pools, c.config.Check); err != nil {
		return err
	}
	c.keeping.Lock()
	defer c.keeping.Unlock()
	c.halt()
	drained := c.drain(ctx, pools)
	if ctx.Err() != nil {
		return fmt.Errorf("keep pools: %w", context.Cause(ctx))
	}
	run, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	set := make([]*kept, len(pools))
	for i, p := range pools {
		set[i] = &kept{Pool: p, wake: make(chan struct{}, 1), starting: make(map[string]time.Time)}
	}
	c.mu.Lock()
	c.kept, c.stop = set, stop
	c.mu.Unlock()
	if !drained {
		c.work.Go(func() { c.drainLater(run, pools) })
	}
	for _, k := range set {
		c.work.Go(func() {
			do := func(ctx context.Context) { c.run(ctx, k) }
			if c.config.Lead == nil {
				do(run)
				return
			}
			c.config.Lead(run, k.Pool, do)
		})
	}
	return nil
}

// Close returns when nothing is done for the pools any more. Their members stay.
func (c *Controller[M, C]) Close() {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	c.halt()
}

func (c *Controller[M, C]) halt() {
	c.mu.Lock()
	stop := c.stop
	c.kept, c.stop = nil, nil
	c.mu.Unlock()
	if stop != nil {
		stop(errStopped)
		c.work.Wait()
	}
}

// Changed reports that members may have changed. The next look is not skipped.
func (c *Controller[M, C]) Changed() { c.version.Add(1) }

// Wake has the controller look at its pools now.
func (c *Controller[M, C]) Wake() {
	c.version.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.kept {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

// Claim claims a member that fits the spec, and returns nil if there is none. On
// the connection the agent has spoken.
func (c *Controller[M, C]) Claim(ctx context.Context, spec providers.Spec, claim C) (net.Conn, error) {
	for m, err := range c.driver.Unclaimed(ctx, &spec, true) {
		if err != nil {
			return nil, err
		}
		if m.State != Ready {
			continue
		}
		conn, err := c.driver.Claim(ctx, m.Value, claim)
		if err != nil {
			return nil, err
		}
		if conn != nil {
			time.AfterFunc(c.config.RefillDelay, c.Wake)
			return conn, nil
		}
	}
	return nil, nil
}

// Pool returns the pool of a template. The error wraps ErrNotFound if none is kept.
func (c *Controller[M, C]) Pool(template string) (providers.Pool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.kept {
		if k.Template == template {
			return k.Pool, nil
		}
	}
	return providers.Pool{}, fmt.Errorf("pool of template %q: %w", template, providers.ErrNotFound)
}

// Status counts the unclaimed members of a template's pool. The caller adds the
// claimed ones, which it counts afterwards: a claim in between must not make a
// sandbox count nowhere.
func (c *Controller[M, C]) Status(ctx context.Context, template string) (providers.PoolStatus, error) {
	if ctx.Err() != nil {
		return providers.PoolStatus{}, fmt.Errorf("pool status: %w", context.Cause(ctx))
	}
	pool, err := c.Pool(template)
	if err != nil {
		return providers.PoolStatus{}, err
	}
	status := providers.PoolStatus{Target: pool.Target}
	for m, err := range c.driver.Unclaimed(ctx, &pool.Spec, true) {
		switch {
		case err != nil:
			return providers.PoolStatus{}, err
		case m.State == Ready:
			status.Available++
			status.Total++
		case m.State == Starting:
			status.Total++
		}
	}
	return status, nil
}

// dropsAtOnce is how many members are deleted at once.
const dropsAtOnce = 4

// drain deletes the members that no pool needs and what else is left of other
// pools, and reports whether it could. A member that another server starts for one
// of the pools stays.
func (c *Controller[M, C]) drain(ctx context.Context, pools []providers.Pool) bool {
	failed := func(err error) bool {
		c.warn(ctx, "pools that are not kept could not be deleted", err)
		return false
	}
	// All members are listed first: one that is started later must stay.
	var all []Member[M]
	for m, err := range c.driver.Unclaimed(ctx, nil, false) {
		if err != nil {
			return failed(err)
		}
		all = append(all, m)
	}
	needed := make(map[string]bool)
	for _, p := range pools {
		left := p.Target
		for m, err := range c.driver.Unclaimed(ctx, &p.Spec, false) {
			if err != nil {
				return failed(err)
			}
			if m.State == Starting {
				needed[m.Name] = true
			}
			if m.State == Ready && left > 0 {
				needed[m.Name] = true
				left--
			}
		}
	}
	var drops errgroup.Group
	drops.SetLimit(dropsAtOnce)
	for _, m := range all {
		if !needed[m.Name] {
			drops.Go(func() error { return c.driver.Drop(ctx, m) })
		}
	}
	err := drops.Wait()
	if err == nil && c.config.Drained != nil {
		err = c.config.Drained(ctx, pools)
	}
	if err != nil {
		return failed(err)
	}
	return true
}

func (c *Controller[M, C]) drainLater(ctx context.Context, pools []providers.Pool) {
	tick := time.NewTicker(c.config.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if c.drain(ctx, pools) {
			return
		}
	}
}

func (c *Controller[M, C]) warn(ctx context.Context, what string, err error, attrs ...slog.Attr) {
	if ctx.Err() == nil {
		c.config.Log.LogAttrs(ctx, slog.LevelWarn, what, append(attrs, slog.Any("error", err))...)
	}
}
