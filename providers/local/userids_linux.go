package local

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/sandgate/sandgate/providers"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// reclaimIDs marks the user ids of running sandboxes as in use.
func (p *Provider) reclaimIDs() error {
	var errs []error
	for b, err := range p.layout.All() {
		if err != nil {
			return err
		}
		// recover takes care of unreadable records.
		if rec, err := readRecord(b); err == nil && rec.UID != 0 {
			errs = append(errs, p.userIDs.Reclaim(rec.UID, rec.Container))
		}
	}
	return errors.Join(errs...)
}

// containers returns the names of all containers in the state directory.
func (p *Provider) containers() (map[string]bool, error) {
	known := make(map[string]bool)
	for b, err := range p.layout.All() {
		if err != nil {
			return nil, err
		}
		rec, err := readRecord(b)
		if err != nil && !errors.Is(err, providers.ErrNotFound) && !errors.Is(err, shared.ErrCorrupt) {
			return nil, err
		}
		known[b.Name()] = true
		if rec != nil {
			known[rec.Container] = true
		}
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
			p.log.LogAttrs(ctx, slog.LevelWarn, "the user ids of sandboxes, or of those with root, overlap with a user's subordinate ids; change these, or for the former --local-uid-base",
				slog.String("file", file), slog.String("entry", entry), slog.Uint64("uid_base", uint64(p.config.UIDBase)))
		}
	}
}
