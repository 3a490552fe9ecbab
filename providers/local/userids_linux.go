package local

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/sandgate/sandgate/providers"
)

// reclaimIDs marks the user ids of running sandboxes as in use.
func (p *Provider) reclaimIDs() error {
	var errs []error
	for _, dir := range []string{p.layout.pool(), p.layout.sandboxes()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			rec, err := readRecord(bundle(filepath.Join(dir, e.Name())))
			if err != nil || rec.UID == 0 {
				continue // one that cannot be read is recover's
			}
			errs = append(errs, p.userIDs.Reclaim(rec.UID, rec.container(e.Name())))
		}
	}
	return errors.Join(errs...)
}

// containers returns the names of all containers in the state directory. It
// reads the pool first, because claims move sandboxes from there.
func (p *Provider) containers() (map[string]bool, error) {
	known := make(map[string]bool)
	pooled, err := os.ReadDir(p.layout.pool())
	if err != nil {
		return nil, err
	}
	for _, e := range pooled {
		known[e.Name()] = true
	}
	entries, err := os.ReadDir(p.layout.sandboxes())
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		rec, err := readRecord(p.layout.sandbox(e.Name()))
		if err != nil && !errors.Is(err, providers.ErrNotFound) && !errors.Is(err, errCorrupt) {
			return nil, err
		}
		known[e.Name()], known[rec.container(e.Name())] = true, true
	}
	return known, nil
}

// warnOfOverlaps logs subordinate ids of users that are also ids of sandboxes.
func (p *Provider) warnOfOverlaps(ctx context.Context) {
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, entry := range p.userIDs.Overlaps(string(data)) {
			p.log.LogAttrs(ctx, slog.LevelWarn, "the user ids of sandboxes overlap with a user's subordinate ids; choose another --local-uid-base",
				slog.String("file", file), slog.String("entry", entry), slog.Uint64("uid_base", uint64(p.config.UIDBase)))
		}
	}
}
