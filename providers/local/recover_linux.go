package local

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/oci"
)

// recover finishes what servers before left half done when they were killed. It
// leaves alone whatever another living server holds the lock of. It returns how
// many sandboxes run.
func (p *Provider) recover(ctx context.Context) (adopted int, err error) {
	// What has a container or a cgroup at this moment has had its directory for
	// longer. The pool is read before the sandboxes, because that is the way a
	// claim goes: nothing that another server claims meanwhile is overlooked.
	containers, err := p.runtime.Containers()
	if err != nil {
		return 0, err
	}
	containers = append(containers, p.cgroups.Names()...)
	pooled, err := os.ReadDir(p.layout.pool())
	if err != nil {
		return 0, err
	}
	entries, err := os.ReadDir(p.layout.sandboxes())
	if err != nil {
		return 0, err
	}
	known := make(map[string]bool)
	var unfinished []string
	for _, e := range entries {
		rec, err := readRecord(p.layout.sandbox(e.Name()))
		switch {
		case err == nil:
			known[rec.container(e.Name())] = true
		case !errors.Is(err, errCorrupt) && !errors.Is(err, providers.ErrNotFound):
			// Any container may be its own: none is taken for a stray.
			containers = nil
		}
		if err == nil && rec.Phase == phaseActive {
			adopted++
		} else {
			unfinished = append(unfinished, e.Name())
		}
	}
	for _, e := range pooled {
		known[e.Name()] = true
		unfinished = append(unfinished, e.Name())
	}
	for _, id := range containers {
		if !known[id] {
			known[id] = true
			unfinished = append(unfinished, id)
		}
	}
	p.finish(ctx, unfinished)
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	if err := p.forgetLocks(ctx); err != nil {
		return 0, err
	}
	if adopted > 0 {
		p.log.LogAttrs(ctx, slog.LevelInfo, "sandboxes found", slog.Int("count", adopted))
	}
	return adopted, nil
}

// finish settles what may be left half done. It waits for no sandbox longer than
// recoverTimeout: one that cannot be removed must not keep the others from being
// served. The retry loop goes on with the rest.
func (p *Provider) finish(ctx context.Context, names []string) {
	ctx, cancel := context.WithTimeoutCause(ctx, recoverBudget, errSlowRemoval)
	defer cancel()
	var work sync.WaitGroup
	slots := make(chan struct{}, drainWorkers)
	for _, name := range names {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				p.removals.postpone(name)
				return
			}
			p.retryRemoval(ctx, name)
		})
	}
	work.Wait()
}

// forgetLocks removes the lock files of what is gone. Whoever was killed between
// the two could not.
func (p *Provider) forgetLocks(ctx context.Context) error {
	entries, err := os.ReadDir(p.layout.locks())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if exists(string(p.layout.sandbox(e.Name()))) || exists(string(p.layout.pooled(e.Name()))) {
			continue
		}
		held, err := p.locks.Try(e.Name())
		if err != nil {
			p.log.LogAttrs(ctx, slog.LevelWarn, "an unused lock cannot be removed", slog.String("name", e.Name()), slog.Any("error", err))
		}
		if held != nil {
			held.Release(!exists(string(p.layout.sandbox(e.Name()))) && !exists(string(p.layout.pooled(e.Name()))))
		}
	}
	return nil
}

// settled is what there is of a sandbox after it was settled.
type settled int

const (
	settledBusy    settled = iota // somebody else holds its lock
	settledKept                   // it is whole
	settledRemoved                // unless there is an error
)

// settle removes a sandbox that nobody is making and that was never ready, or
// whose deletion had begun.
func (p *Provider) settle(ctx context.Context, name string) (settled, error) {
	held, err := p.locks.Try(name)
	if err != nil || held == nil {
		return settledBusy, err
	}
	b := p.layout.sandbox(name)
	defer func() { held.Release(!exists(string(b))) }()
	rec, err := readRecord(b)
	switch {
	case err == nil && rec.Phase == phaseActive && !p.removals.decided(name):
		return settledKept, nil
	case err == nil, errors.Is(err, errCorrupt), errors.Is(err, providers.ErrNotFound):
	default:
		return settledKept, err
	}
	p.log.LogAttrs(ctx, slog.LevelInfo, "removing a half-made or half-deleted sandbox", slog.String("name", name))
	return settledRemoved, p.destroy(ctx, held, b, rec.container(name), rec)
}

// firstProcesses are those of all sandboxes, without the boot.
func (p *Provider) firstProcesses() map[oci.Process]bool {
	known := map[oci.Process]bool{}
	for _, dir := range []string{p.layout.sandboxes(), p.layout.pool()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			rec, err := readRecord(bundle(filepath.Join(dir, e.Name())))
			if err != nil {
				continue
			}
			for _, of := range []oci.Process{rec.Init, rec.Helper} {
				known[oci.Process{PID: of.PID, Start: of.Start}] = true
			}
		}
	}
	return known
}
