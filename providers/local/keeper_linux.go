package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

const (
	// lookAfter is how often a pool is looked after when nothing was claimed:
	// one of its sandboxes may have ended.
	lookAfter = 2 * time.Second
	// firstCommand is how long after a creation its caller is left alone.
	firstCommand = 100 * time.Millisecond
	// patience bounds how long foreground creations can keep a pool from being
	// filled.
	patience = time.Second
	// The delay after failures in a row doubles from the first to the last.
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// keeper fills pools in the background, one sandbox at a time.
type keeper struct {
	pools  []keptPool
	kick   chan struct{}
	cancel context.CancelCauseFunc
	done   chan struct{}
	// failures in a row, and when to try again, by template. Only the keeper's
	// own goroutine uses them.
	failures map[string]int
	again    map[string]time.Time
}

func (k *keeper) pool(template string) *keptPool {
	if k == nil {
		return nil
	}
	for i := range k.pools {
		if k.pools[i].Template == template {
			return &k.pools[i]
		}
	}
	return nil
}

var errKeeperStopped = errors.New("the pools are not kept any more")

func (p *Provider) startKeeper(ctx context.Context, pools []keptPool) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	k := &keeper{
		pools: pools, kick: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{}),
		failures: make(map[string]int), again: make(map[string]time.Time),
	}
	p.mu.Lock()
	p.keeper = k
	p.mu.Unlock()
	go p.keep(ctx, k)
}

// stopKeeper returns when nothing is done for the pools any more. A sandbox that
// was being started for one is gone then.
func (p *Provider) stopKeeper() {
	p.mu.Lock()
	k := p.keeper
	p.keeper = nil
	p.mu.Unlock()
	if k != nil {
		k.cancel(errKeeperStopped)
		<-k.done
	}
}

// refill has the keeper look at once.
func (p *Provider) refill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keeper == nil {
		return
	}
	select {
	case p.keeper.kick <- struct{}{}:
	default:
	}
}

func (p *Provider) keep(ctx context.Context, k *keeper) {
	defer close(k.done)
	if len(k.pools) == 0 {
		return
	}
	tick := time.NewTicker(lookAfter)
	defer tick.Stop()
	for {
		for i := range k.pools {
			p.tend(ctx, k, &k.pools[i])
		}
		select {
		case <-ctx.Done():
			return
		case <-k.kick:
		case <-tick.C:
		}
	}
}

// tend removes what is broken in a pool and starts sandboxes until it is full or
// one fails.
func (p *Provider) tend(ctx context.Context, k *keeper, pool *keptPool) {
	ids, err := p.pooled(pool.Template)
	if err != nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "a pool cannot be looked after", slog.String("template", pool.Template), slog.Any("error", err))
		return
	}
	for _, id := range ids {
		// The retry loop has those that could not be deleted.
		if p.removals.reason(id) != "" {
			continue
		}
		if _, err := p.settlePooled(ctx, id); err != nil && ctx.Err() == nil {
			p.log.LogAttrs(ctx, slog.LevelWarn, "a broken sandbox of a pool could not be deleted", slog.String("pooled", id), slog.Any("error", err))
		}
	}
	for ctx.Err() == nil && !time.Now().Before(k.again[pool.Template]) {
		full, err := p.fill(ctx, pool)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			n := k.failures[pool.Template]
			delay := min(firstRetry<<min(n, 10), lastRetry)
			k.failures[pool.Template], k.again[pool.Template] = n+1, time.Now().Add(delay)
			p.log.LogAttrs(ctx, slog.LevelWarn, "a pool could not be filled; it is tried again later", slog.String("template", pool.Template),
				slog.Int("failures", n+1), slog.Duration("again_in", delay), slog.Any("error", err))
			return
		case full:
			return
		}
		if n := k.failures[pool.Template]; n > 0 {
			p.log.LogAttrs(ctx, slog.LevelInfo, "a pool is being filled again", slog.String("template", pool.Template), slog.Int("failures", n))
			delete(k.failures, pool.Template)
		}
	}
}

// fill starts one sandbox, unless the pool is full. All servers of a state
// directory take turns, so they neither fill it twice nor do it at once.
func (p *Provider) fill(ctx context.Context, pool *keptPool) (full bool, err error) {
	if p.full(pool) {
		return true, nil
	}
	if err := p.awaitQuiet(ctx); err != nil {
		return false, err
	}
	turn, err := p.locks.Acquire(ctx, "_fill")
	if err != nil {
		return false, err
	}
	defer turn.Release(true)
	if p.full(pool) {
		return true, nil
	}
	random, err := newIncarnation()
	if err != nil {
		return false, err
	}
	id := pooledPrefix(pool.Template) + random
	held, err := p.locks.Acquire(ctx, id)
	if err != nil {
		return false, err
	}
	b := p.layout.pooled(id)
	defer func() { held.Release(!exists(string(b))) }()
	if _, _, err = p.build(ctx, held, b, id, pool.Spec, pool.options, phaseUnclaimed); err != nil {
		return false, fmt.Errorf("start a sandbox: %w", err)
	}
	return false, nil
}

func (p *Provider) full(pool *keptPool) bool {
	ids, err := p.pooled(pool.Template)
	if err != nil {
		return false
	}
	n := 0
	for _, id := range ids {
		if p.unclaimed(id, pool.Spec) != nil {
			n++
		}
	}
	return n >= pool.Target
}

// awaitQuiet lets callers go first.
func (p *Provider) awaitQuiet(ctx context.Context) error {
	tick := time.NewTicker(firstCommand / 4)
	defer tick.Stop()
	for until := time.Now().Add(patience); !p.foreground.quiet() && time.Now().Before(until); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
