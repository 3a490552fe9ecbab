package local

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
	shared "github.com/sandgate/sandgate/providers/internal/record"
	"github.com/sandgate/sandgate/providers/local/oci"
	"github.com/sandgate/sandgate/providers/local/removal"
)

// recover finishes creations and deletions that killed servers left half done.
// It skips sandboxes whose lock another server holds. It returns the number of
// running sandboxes.
func (p *Provider) recover(ctx context.Context) (adopted int, err error) {
	// A sandbox has its directory before its container and cgroup, so
	// containers and cgroups are listed first. The pool is read before the
	// sandboxes, because claims move sandboxes from there.
	containers, err := p.runtime.Containers()
	if err != nil {
		return 0, err
	}
	containers = append(containers, p.cgroups.Names()...)
	known := make(map[string]bool)
	var unfinished []string
	for d, err := range p.layout.All() {
		if err != nil {
			return 0, err
		}
		known[d.Name()] = true
		rec, err := readRecord(d)
		switch {
		case err == nil:
			known[rec.Container] = true
		case !errors.Is(err, shared.ErrCorrupt) && !errors.Is(err, providers.ErrNotFound):
			// Any container may belong to it, so none is removed as a stray.
			containers = nil
		}
		if err == nil && rec.Phase == directory.Active {
			adopted++
		} else {
			unfinished = append(unfinished, d.Name())
		}
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
		p.log.LogAttrs(ctx, slog.LevelInfo, "adopted sandboxes", slog.Int("count", adopted))
	}
	return adopted, nil
}

// finishWorkers is how many half-made sandboxes are finished at once.
const finishWorkers = 4

// recoverBudget limits how long the start of the server waits for them. Longer
// removals continue in the background.
const recoverBudget = 15 * time.Second

// finish removes or keeps sandboxes that may be half made. It waits a few seconds for
// each: one that can't be removed must not delay the others.
// The retry loop continues with the rest.
func (p *Provider) finish(ctx context.Context, names []string) {
	ctx, cancel := context.WithTimeoutCause(ctx, recoverBudget, removal.ErrSlow)
	defer cancel()
	var work sync.WaitGroup
	slots := make(chan struct{}, finishWorkers)
	for _, name := range names {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				p.removals.Postpone(name)
				return
			}
			p.removals.Retry(ctx, name)
		})
	}
	work.Wait()
}

// forgetLocks removes lock files without a sandbox, which a server leaves if it
// is killed between the two removals.
func (p *Provider) forgetLocks(ctx context.Context) error {
	entries, err := os.ReadDir(p.layout.Locks())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if p.layout.Sandbox(e.Name()).Exists() || p.layout.Pooled(e.Name()).Exists() {
			continue
		}
		held, err := p.locks.Try(e.Name())
		if err != nil {
			p.log.LogAttrs(ctx, slog.LevelWarn, "cannot remove an unused lock file", slog.String("name", e.Name()), slog.Any("error", err))
		}
		if held != nil {
			held.Release(!p.layout.Sandbox(e.Name()).Exists() && !p.layout.Pooled(e.Name()).Exists())
		}
	}
	return nil
}

// settle removes what is half made or half deleted of a sandbox or pool member, or of
// a container that belongs to none.
func (p *Provider) settle(ctx context.Context, name string) (directory.Outcome, error) {
	for _, d := range []directory.Dir{p.layout.Pooled(name), p.layout.Sandbox(name)} {
		if d.Exists() {
			return p.Settle(ctx, d)
		}
	}
	held, err := p.locks.Try(name)
	if err != nil || held == nil {
		return directory.Busy, err
	}
	d := p.layout.Sandbox(name)
	defer func() { held.Release(!d.Exists()) }()
	// Another server may have claimed the member of this name meanwhile.
	known, err := p.containers()
	if err != nil || known[name] {
		return directory.Kept, err
	}
	p.log.LogAttrs(ctx, slog.LevelInfo, "removing a container of no sandbox", slog.String("name", name))
	return directory.Removed, p.destroy(ctx, held, d, name, nil)
}

// firstProcesses returns the first processes of all sandboxes, without the boot
// id.
func (p *Provider) firstProcesses() map[oci.Process]bool {
	known := map[oci.Process]bool{}
	for b, err := range p.layout.All() {
		if err != nil {
			continue
		}
		rec, err := readRecord(b)
		if err != nil {
			continue
		}
		for _, of := range []oci.Process{rec.Init, rec.Helper} {
			known[oci.Process{PID: of.PID, Start: of.Start}] = true
		}
	}
	return known
}
