package local

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/pool"
	shared "github.com/sandgate/sandgate/providers/internal/record"
	"github.com/sandgate/sandgate/providers/local/image"
)

const (
	// firstCommand is how long after a creation its caller is left alone.
	firstCommand = 100 * time.Millisecond
	// fillGrace bounds how long creations can keep a pool from being filled.
	fillGrace = time.Second
)

// KeepPools drops what no pool needs before it returns.
func (p *Provider) KeepPools(ctx context.Context, pools []providers.Pool) error {
	return p.pools.Keep(ctx, pools)
}

func checkPool(want providers.Pool) error {
	if err := pool.CheckTemplate(want); err != nil {
		return err
	}
	if want.Spec.Image != "" {
		if _, err := image.Parse(want.Spec.Image); err != nil {
			return err
		}
	}
	if err := checkResources(want.Spec.Resources); err != nil {
		return err
	}
	_, err := decodeOptions(want.Spec)
	return err
}

// PoolStatus counts what the state directory holds, whichever server made it.
func (p *Provider) PoolStatus(ctx context.Context, template string) (providers.PoolStatus, error) {
	status, err := p.pools.Status(ctx, template)
	if err != nil {
		return providers.PoolStatus{}, err
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
	status.Total += status.Active
	return status, nil
}

// poolDriver is the state directory as its pools see it. A member is known by
// the name of its directory.
type poolDriver struct{ p *Provider }

// Start takes turns with all servers of the state directory, so that they neither
// overfill a pool nor start sandboxes at the same time.
func (d poolDriver) Start(ctx context.Context, want providers.Pool, name string) error {
	p := d.p
	options, err := decodeOptions(want.Spec)
	if err != nil {
		return err
	}
	if err := p.awaitQuiet(ctx); err != nil {
		return err
	}
	turn, err := p.locks.Acquire(ctx, "_fill")
	if err != nil {
		return err
	}
	defer turn.Release(true)
	ready := 0
	for m, err := range d.Unclaimed(ctx, &want.Spec, false) {
		if err != nil {
			return err
		}
		if m.State == pool.Ready {
			ready++
		}
	}
	if ready >= want.Target {
		return pool.ErrFull
	}
	id := pooledPrefix(want.Template) + name
	held, err := p.locks.Acquire(ctx, id)
	if err != nil {
		return err
	}
	b := p.layout.pooled(id)
	defer func() { held.Release(!exists(string(b))) }()
	if _, _, err = p.build(ctx, held, b, id, want.Spec, options, phaseUnclaimed); err != nil {
		return fmt.Errorf("start a sandbox: %w", err)
	}
	return nil
}

// Unclaimed reads records only as far as they are wanted: a claim needs one.
func (d poolDriver) Unclaimed(_ context.Context, spec *providers.Spec, _ bool) iter.Seq2[pool.Member[string], error] {
	p := d.p
	return func(yield func(pool.Member[string], error) bool) {
		entries, err := os.ReadDir(p.layout.pool())
		if err != nil {
			yield(pool.Member[string]{}, err)
			return
		}
		// Callers that claim at the same time should not try the same ones.
		rand.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
		for _, e := range entries {
			if spec != nil && (!pool.IsTemplateName(spec.Template) || !strings.HasPrefix(e.Name(), pooledPrefix(spec.Template))) {
				continue
			}
			if m, ok := p.member(e.Name(), spec); ok && !yield(m, nil) {
				return
			}
		}
	}
}

// member returns what there is in a directory of the pools. One that is removed
// by the retries of removals is not a member any more.
func (p *Provider) member(id string, spec *providers.Spec) (m pool.Member[string], ok bool) {
	if p.removals.reason(id) != "" {
		return m, false
	}
	m = pool.Member[string]{Name: id[strings.LastIndexByte(id, '.')+1:], Value: id}
	b := p.layout.pooled(id)
	rec, err := readRecord(b)
	switch {
	case errors.Is(err, providers.ErrNotFound) && !exists(string(b)):
		return m, false // it was claimed or removed meanwhile
	case err != nil:
		m.State = pool.Broken
		return m, true
	case rec.Phase == phaseUnclaimed && rec.Init.Alive():
		m.State = pool.Ready
	default:
		// The server that starts, claims or deletes it holds its lock.
		held, err := p.locks.Try(id)
		if err == nil && held != nil {
			held.Release(!exists(string(b)))
			m.State = pool.Broken
			return m, true
		}
		m.State = pool.Starting
	}
	m.Created = rec.CreateTime
	if spec != nil && rec.Fit != p.fitOf(*spec, rec.Incarnation) {
		m.State = pool.Stale
	}
	return m, true
}

// Claim makes a member the sandbox of a creation that holds its name's lock.
func (d poolDriver) Claim(ctx context.Context, id string, c *claim) (net.Conn, error) {
	conn, err := d.p.claimMember(ctx, id, c)
	if err != nil && ctx.Err() == nil {
		// The creation goes on without it.
		d.p.log.LogAttrs(ctx, slog.LevelWarn, "a sandbox of a pool could not be claimed", slog.String("pooled", id), slog.Any("error", err))
		err = nil
	}
	return conn, err
}

// Drop deletes a member unless it is claimed first. One that cannot be
// deleted now is left to the retries of removals.
func (d poolDriver) Drop(ctx context.Context, m pool.Member[string]) error {
	p, id := d.p, m.Value
	var err error
	if m.State == pool.Broken {
		_, err = p.settlePooled(ctx, id)
	} else {
		err = p.drop(ctx, id)
	}
	if err != nil && p.removals.reason(id) != "" {
		p.log.LogAttrs(ctx, slog.LevelWarn, "a sandbox of a pool could not be deleted and is tried again", slog.String("pooled", id), slog.Any("error", err))
		return nil
	}
	return err
}

func (p *Provider) drop(ctx context.Context, id string) error {
	held, err := p.locks.Acquire(ctx, id)
	if err != nil {
		return err
	}
	b := p.layout.pooled(id)
	defer func() { held.Release(!exists(string(b))) }()
	rec, err := readRecord(b)
	switch {
	case errors.Is(err, shared.ErrCorrupt), errors.Is(err, providers.ErrNotFound) && exists(string(b)):
	case errors.Is(err, providers.ErrNotFound):
		return nil
	case err != nil:
		return err
	default:
		p.markDeleting(ctx, held, b, rec)
	}
	return p.destroy(ctx, held, b, id, rec)
}

// foreground counts the creations that callers wait for.
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

// quiet reports whether no creation runs and the first command of the last one is
// likely to have ended.
func (f *foreground) quiet() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls == 0 && time.Since(f.last) > firstCommand
}

// awaitQuiet lets callers go first.
func (p *Provider) awaitQuiet(ctx context.Context) error {
	tick := time.NewTicker(firstCommand / 4)
	defer tick.Stop()
	for until := time.Now().Add(fillGrace); !p.foreground.quiet() && time.Now().Before(until); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
