package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/internal/lock"
	"github.com/sandgate/sandgate/providers/local/disk"
	"github.com/sandgate/sandgate/providers/local/oci"
	"github.com/sandgate/sandgate/providers/local/removal"
)

// Destroy removes a sandbox in any state.
func (d driver) Destroy(ctx context.Context, held *lock.Lock, dir directory.Dir, container string, rec *record) error {
	if err := d.p.destroy(ctx, held, dir, container, rec); err != nil {
		return fmt.Errorf("sandbox %s is not removed yet: %w: %w", held.Name(), err, providers.ErrUnavailable)
	}
	return nil
}

func (p *Provider) destroy(ctx context.Context, held *lock.Lock, dir directory.Dir, container string, rec *record) error {
	t := removal.Target{Lock: held, Dir: dir, Steps: func(ctx context.Context) []removal.Step {
		return p.removalSteps(ctx, bundle(dir), container, rec)
	}}
	if rec != nil {
		t.Incarnation, t.Decided = rec.Incarnation, rec.Phase == directory.Deleting
	}
	return p.removals.Remove(ctx, t)
}

// removalSteps returns the steps that remove a sandbox, or a container that belongs to
// none.
func (p *Provider) removalSteps(ctx context.Context, b bundle, container string, rec *record) []removal.Step {
	var runtime *oci.Runtime
	return []removal.Step{
		{Name: "find its runtime", Do: func() (err error) {
			runtime, err = p.runtimeOf(rec)
			return err
		}},
		{Name: "end its processes", Do: func() error {
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
		{Name: "delete its container", Do: func() error {
			err := runtime.Remove(ctx, container)
			if err != nil && p.cgroups.Remove(ctx, container) == nil {
				// runc 1.2 and later do not delete a container with cgroups whose paths
				// are too long for a system call.
				err = runtime.Remove(ctx, container)
			}
			return err
		}},
		{Name: "remove its cgroups", Do: func() error { return p.cgroups.Remove(ctx, container) }},
		{Name: "detach its disk", Do: func() error {
			if rec != nil && rec.Loop != "" {
				disk.WaitDetached(ctx, rec.Loop, b.image())
			}
			return nil
		}},
		{Name: "delete its files", Do: func() error { return emptyBundle(b) }},
		// Not before its files, since some may belong to the user id, and not
		// after the record, which marks unfinished work.
		{Name: "release its user id", Do: func() error {
			if rec == nil || rec.UID == 0 {
				return p.userIDs.ReleaseOf(container)
			}
			return p.userIDs.Release(rec.UID, container)
		}},
		{Name: "delete its record", Do: func() error { return os.RemoveAll(string(b)) }},
	}
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
		if path := filepath.Join(string(b), e.Name()); path != directory.Dir(b).Record() {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}
