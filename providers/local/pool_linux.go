package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/image"
)

// keptPool is a pool with its options decoded.
type keptPool struct {
	providers.Pool
	options templateOptions
}

// KeepPools deletes what no pool needs any more before it returns.
func (p *Provider) KeepPools(ctx context.Context, pools []providers.Pool) error {
	kept := make([]keptPool, 0, len(pools))
	said := make(map[string]bool, len(pools))
	for _, pool := range pools {
		options, err := checkPool(pool)
		if err == nil && said[pool.Template] {
			err = errors.New("it is given twice")
		}
		if err != nil {
			return fmt.Errorf("pool of template %q: %w: %w", pool.Template, err, providers.ErrInvalid)
		}
		said[pool.Template] = true
		kept = append(kept, keptPool{Pool: pool, options: options})
	}
	p.keeping.Lock()
	defer p.keeping.Unlock()
	p.stopKeeper()
	if err := p.drain(ctx, kept); err != nil {
		return err
	}
	p.startKeeper(ctx, kept)
	return nil
}

func checkPool(pool providers.Pool) (templateOptions, error) {
	if !poolName.MatchString(pool.Template) {
		return templateOptions{}, errors.New("a name must be 1 to 63 characters of a-z, 0-9 and '-'")
	}
	if pool.Target < 1 {
		return templateOptions{}, fmt.Errorf("%d sandboxes cannot be kept", pool.Target)
	}
	if pool.Spec.Template != pool.Template {
		return templateOptions{}, fmt.Errorf("its spec is of template %q", pool.Spec.Template)
	}
	if pool.Spec.Image != "" {
		if _, err := image.Parse(pool.Spec.Image); err != nil {
			return templateOptions{}, err
		}
	}
	if err := checkResources(pool.Spec.Resources); err != nil {
		return templateOptions{}, err
	}
	return decodeOptions(pool.Spec)
}

// drainWorkers is how many sandboxes are deleted at once.
const drainWorkers = 4

// drain deletes unclaimed sandboxes that fit none of the pools, and those beyond
// a pool's target. One that cannot be deleted is told of and left to the next
// start: nobody can claim it.
func (p *Provider) drain(ctx context.Context, pools []keptPool) error {
	entries, err := os.ReadDir(p.layout.pool())
	if err != nil {
		return err
	}
	needed := make(map[string]bool)
	for _, pool := range pools {
		ids, err := p.pooled(pool.Template)
		if err != nil {
			return err
		}
		left := pool.Target
		for _, id := range ids {
			if left > 0 && p.unclaimed(id, pool.Spec) != nil {
				needed[id] = true
				left--
			}
		}
	}
	var work sync.WaitGroup
	slots := make(chan struct{}, drainWorkers)
	for _, e := range entries {
		if needed[e.Name()] {
			continue
		}
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			if err := p.drop(ctx, e.Name()); err != nil {
				p.log.LogAttrs(ctx, slog.LevelWarn, "a sandbox that no pool needs could not be deleted", slog.String("pooled", e.Name()), slog.Any("error", err))
			}
		})
	}
	work.Wait()
	if ctx.Err() != nil {
		return fmt.Errorf("keep pools: %w", context.Cause(ctx))
	}
	return nil
}

// drop deletes a sandbox of a pool unless somebody claims it first.
func (p *Provider) drop(ctx context.Context, id string) error {
	held, err := p.locks.Acquire(ctx, id)
	if err != nil {
		return err
	}
	b := p.layout.pooled(id)
	defer func() { held.Release(!exists(string(b))) }()
	rec, err := readRecord(b)
	switch {
	case errors.Is(err, errCorrupt), errors.Is(err, providers.ErrNotFound) && exists(string(b)):
	case errors.Is(err, providers.ErrNotFound):
		return nil
	case err != nil:
		return err
	default:
		p.markDeleting(ctx, held, b, rec)
	}
	return p.destroy(ctx, held, b, id, rec)
}

// PoolStatus counts what the state directory holds, whichever server made it.
func (p *Provider) PoolStatus(ctx context.Context, template string) (providers.PoolStatus, error) {
	if ctx.Err() != nil {
		return providers.PoolStatus{}, fmt.Errorf("pool status: %w", context.Cause(ctx))
	}
	p.mu.Lock()
	keeper := p.keeper
	p.mu.Unlock()
	pool := keeper.pool(template)
	if pool == nil {
		return providers.PoolStatus{}, fmt.Errorf("pool of template %q: %w", template, providers.ErrNotFound)
	}
	// A claim between the two looks must not make a sandbox count nowhere.
	pooled, err := p.pooled(template)
	if err != nil {
		return providers.PoolStatus{}, err
	}
	status := providers.PoolStatus{Target: pool.Target}
	starting := 0
	for _, id := range pooled {
		if p.unclaimed(id, pool.Spec) != nil {
			status.Available++
		} else if rec, err := readRecord(p.layout.pooled(id)); err == nil && rec.Phase == phaseCreating {
			starting++
		}
	}
	entries, err := os.ReadDir(p.layout.sandboxes())
	if err != nil {
		return providers.PoolStatus{}, err
	}
	for _, e := range entries {
		if rec, err := readRecord(p.layout.sandbox(e.Name())); err == nil && rec.FromPool && rec.Spec.Template == template {
			status.Active++
		}
	}
	status.Total = status.Available + status.Active + starting
	return status, nil
}

// foreground knows of creations that somebody waits for.
type foreground struct {
	mu    sync.Mutex
	calls int
	last  time.Time // when the last one ended
}

// enter counts a creation until the returned function is called.
func (f *foreground) enter() func() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.calls--
		f.last = time.Now()
	}
}

// quiet reports whether nobody waits, and nobody is likely to be at the first
// command of a new sandbox.
func (f *foreground) quiet() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls == 0 && time.Since(f.last) > firstCommand
}
