package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/local/disk"
	"github.com/sandgate/sandgate/providers/local/oci"
)

// Delete ends a sandbox.
func (p *Provider) Delete(ctx context.Context, name string, c providers.Condition) error {
	return p.store.Delete(ctx, name, c)
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
		if path := filepath.Join(string(b), e.Name()); path != directory.Dir(b).Record() {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}
