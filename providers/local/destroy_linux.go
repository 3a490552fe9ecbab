package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// Delete ends a sandbox.
func (p *Provider) Delete(ctx context.Context, name string, c providers.Condition) error {
	// Without this, a name that never was would get a lock file and an answer
	// only after the wait for it.
	if !exists(string(p.layout.sandbox(name))) {
		return fmt.Errorf("sandbox %s: %w", name, providers.ErrNotFound)
	}
	held, err := p.locks.acquire(ctx, name)
	if err != nil {
		return err
	}
	b := p.layout.sandbox(name)
	defer func() { held.release(!exists(string(b))) }()
	rec, err := readRecord(b)
	switch {
	case errors.Is(err, errCorrupt):
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	case rec.Phase == phaseCreating:
		// Nobody holds its lock, so its creation failed with its server.
		if err := p.destroy(ctx, b, rec.container(name), rec); err != nil {
			return err
		}
		return fmt.Errorf("sandbox %s: %w", name, providers.ErrNotFound)
	case c.Incarnation != "" && c.Incarnation != rec.Incarnation:
		return fmt.Errorf("sandbox %s: %w", name, providers.ErrReplaced)
	default:
		rec.Phase = phaseDeleting
		if err := rec.write(b); err != nil {
			return err
		}
	}
	if conn := p.takeWarm(name); conn != nil {
		_ = conn.Close()
	}
	return p.destroy(ctx, b, rec.container(name), rec)
}

// destroy removes all there may be of a sandbox, whatever state it is in. It can
// be repeated until it succeeds: the directory, which is the mark of there being
// one, goes last. The caller holds the lock; rec may be nil.
func (p *Provider) destroy(ctx context.Context, b bundle, container string, rec *record) error {
	runtime, err := p.engineOf(rec)
	if err != nil {
		return err
	}
	if rec != nil {
		for _, running := range []process{rec.Init, rec.Helper} {
			if err := running.kill(ctx); err != nil {
				return err
			}
		}
	}
	if rec == nil || rec.Init.PID == 0 {
		if err := runtime.endStray(ctx, container); err != nil {
			return err
		}
	}
	if err := runtime.remove(ctx, container); err != nil {
		return err
	}
	if err := p.cgroups.remove(ctx, container); err != nil {
		return err
	}
	if rec != nil && rec.Loop != "" {
		waitDetached(ctx, rec.Loop, b.image())
	}
	return removeBundle(b)
}

// removeBundle takes the record last, and the directory with it: a directory
// without a record is half made.
func removeBundle(b bundle) error {
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
	return os.RemoveAll(string(b))
}

// waitDetached waits a short while for the kernel to let go of a disk, which it
// does in the background once the last process is gone. A caller who counts
// loop devices after a deletion then finds none.
func waitDetached(ctx context.Context, dev, image string) {
	deadline := time.Now().Add(2 * time.Second)
	for wait := 500 * time.Microsecond; loopHolds(dev, image) && time.Now().Before(deadline); wait = min(2*wait, 20*time.Millisecond) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}
