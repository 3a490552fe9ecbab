package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/lock"
	"github.com/sandgate/sandgate/providers/local/disk"
	"github.com/sandgate/sandgate/providers/local/oci"
)

// Delete ends a sandbox.
func (p *Provider) Delete(ctx context.Context, name string, c providers.Condition) error {
	// Without this check, an unknown name would get a lock file and wait for
	// the lock.
	if !exists(string(p.layout.sandbox(name))) {
		return fmt.Errorf("sandbox %s: %w", name, providers.ErrNotFound)
	}
	held, err := p.locks.Acquire(ctx, name)
	if err != nil {
		return err
	}
	b := p.layout.sandbox(name)
	defer func() { held.Release(!exists(string(b))) }()
	rec, err := readRecord(b)
	switch {
	case errors.Is(err, providers.ErrNotFound):
		return fmt.Errorf("%s: %w", name, err)
	case err != nil:
		// The record can't be read, but the rest can be removed.
	case rec.Phase == phaseCreating:
		// Its lock is free, so its creation failed with its server.
		if err := p.destroy(ctx, held, b, rec.container(name), rec); err != nil {
			return notRemoved(name, err)
		}
		return fmt.Errorf("sandbox %s: %w", name, providers.ErrNotFound)
	case c.Incarnation != "" && c.Incarnation != rec.Incarnation:
		return fmt.Errorf("sandbox %s: %w", name, providers.ErrReplaced)
	case rec.Phase == phaseActive && c.InUse(rec.LastActivity):
		return fmt.Errorf("sandbox %s: %w", name, providers.ErrInUse)
	default:
		p.markDeleting(ctx, held, b, rec)
	}
	if err := p.destroy(ctx, held, b, rec.container(name), rec); err != nil {
		return notRemoved(name, err)
	}
	return nil
}

// markDeleting records the deletion, so that the next server finishes it if
// this one is killed. The record can't be written on a full disk, which only a
// deletion frees: this server then deletes the sandbox without it and retries
// from memory. If it is killed half way, the sandbox is FAILED and can be
// deleted again.
func (p *Provider) markDeleting(ctx context.Context, held *lock.Lock, b bundle, rec *record) {
	rec.Phase = phaseDeleting
	if err := rec.write(b); err != nil {
		p.removals.decide(held.Name())
		p.log.LogAttrs(ctx, slog.LevelWarn, "deleting a sandbox without recording it first", slog.String("container", rec.Container), slog.Any("error", err))
	}
}

// removeAll is one attempt of destroy. Its error is a *removalError.
func (p *Provider) removeAll(ctx context.Context, at *attempt, b bundle, container string, rec *record) error {
	var runtime *oci.Runtime
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"find its runtime", func() (err error) {
			runtime, err = p.runtimeOf(rec)
			return err
		}},
		{"end its processes", func() error {
			if rec != nil {
				for _, running := range []oci.Process{rec.Init, rec.Helper} {
					if err := running.Kill(ctx); err != nil {
						return err
					}
				}
			}
			if rec == nil || rec.Init.PID == 0 {
				return runtime.EndStray(ctx, container)
			}
			return nil
		}},
		{"delete its container", func() error { return runtime.Remove(ctx, container) }},
		{"remove its cgroups", func() error { return p.cgroups.Remove(ctx, container) }},
		{"detach its disk", func() error {
			if rec != nil && rec.Loop != "" {
				disk.WaitDetached(ctx, rec.Loop, b.image())
			}
			return nil
		}},
		{"delete its files", func() error { return emptyBundle(b) }},
		// Not before its files, since some may belong to the user id, and not
		// after the record, which marks unfinished work.
		{"release its user id", func() error {
			if rec == nil || rec.UID == 0 {
				return p.userIDs.ReleaseOf(container)
			}
			return p.userIDs.Release(rec.UID, container)
		}},
		{"delete its record", func() error { return os.RemoveAll(string(b)) }},
	} {
		at.begin(step.name)
		err := p.fault(ctx, step.name)
		if err == nil {
			err = step.do()
		}
		if err != nil {
			return &removalError{step: step.name, cause: err}
		}
	}
	return nil
}

// emptyBundle keeps the record and the directory, which are removed last: a
// directory without a record is half made.
func emptyBundle(b bundle) error {
	entries, err := os.ReadDir(string(b))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if path := filepath.Join(string(b), e.Name()); path != b.record() {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}
