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
	entries, err := os.ReadDir(p.layout.sandboxes())
	if err != nil {
		return err
	}
	adopted := 0
	for _, e := range entries {
		kept, err := p.settle(ctx, e.Name())
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
		if kept {
			adopted++
		}
	}
	names, err := p.engine.containers()
	if err != nil {
		return err
	}
	for _, name := range append(names, p.cgroups.names()...) {
		if _, err := p.settle(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if adopted > 0 {
		p.log.LogAttrs(ctx, slog.LevelInfo, "sandboxes found", slog.Int("count", adopted))
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
	return false, p.destroy(ctx, name, rec)
}
