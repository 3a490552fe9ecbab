package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/sandgate/sandgate/providers"
)

// recover finishes what servers before left half done when they were killed. It
// leaves alone whatever another living server holds the lock of.
func (p *Provider) recover(ctx context.Context) error {
	// What has a container or a cgroup at this moment has had its directory for
	// longer. The pool is read before the sandboxes, because that is the way a
	// claim goes: nothing that another server claims meanwhile is overlooked.
	containers, err := p.engine.containers()
	if err != nil {
		return err
	}
	containers = append(containers, p.cgroups.names()...)
	pooled, err := os.ReadDir(p.layout.pool())
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(p.layout.sandboxes())
	if err != nil {
		return err
	}
	adopted, known := 0, make(map[string]bool)
	for _, e := range entries {
		if rec, err := readRecord(p.layout.sandbox(e.Name())); err == nil {
			known[rec.container(e.Name())] = true
		}
		kept, err := p.settle(ctx, e.Name())
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
		if kept {
			adopted++
		}
	}
	for _, e := range pooled {
		known[e.Name()] = true
		if err := p.settlePooled(ctx, e.Name()); err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
	}
	for _, id := range containers {
		if known[id] {
			continue
		}
		if _, err := p.settle(ctx, id); err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
	}
	if err := p.forgetLocks(); err != nil {
		return err
	}
	if adopted > 0 {
		p.log.LogAttrs(ctx, slog.LevelInfo, "sandboxes found", slog.Int("count", adopted))
	}
	return nil
}

// forgetLocks removes the lock files of what is gone. Whoever was killed between
// the two could not.
func (p *Provider) forgetLocks() error {
	entries, err := os.ReadDir(p.layout.locks())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if exists(string(p.layout.sandbox(e.Name()))) || exists(string(p.layout.pooled(e.Name()))) {
			continue
		}
		held, err := p.locks.try(e.Name())
		if err != nil {
			return err
		}
		if held != nil {
			held.release(!exists(string(p.layout.sandbox(e.Name()))) && !exists(string(p.layout.pooled(e.Name()))))
		}
	}
	return nil
}

// settle removes a sandbox that nobody is making and that was never ready, or
// whose deletion had begun.
func (p *Provider) settle(ctx context.Context, name string) (kept bool, err error) {
	held, err := p.locks.try(name)
	if err != nil || held == nil {
		return held == nil && err == nil, err
	}
	b := p.layout.sandbox(name)
	defer func() { held.release(!exists(string(b))) }()
	rec, err := readRecord(b)
	switch {
	case err == nil && rec.Phase == phaseActive:
		return true, nil
	case err == nil, errors.Is(err, errCorrupt), errors.Is(err, providers.ErrNotFound):
	default:
		return false, err
	}
	p.log.LogAttrs(ctx, slog.LevelInfo, "removing a half-made or half-deleted sandbox", slog.String("name", name))
	return false, p.destroy(ctx, b, rec.container(name), rec)
}
