package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/sandgate/sandgate/providers"
	shared "github.com/sandgate/sandgate/providers/internal/record"
	"github.com/sandgate/sandgate/providers/local/image"
)

// useImage makes an image the root of the plan. The image is pulled and unpacked on
// first use.
func (p *Provider) useImage(ctx context.Context, pl *plan, rec *record, ref string) error {
	key, meta, err := p.fetchImage(ctx, ref, pl.options)
	if err != nil {
		return err
	}
	rec.Image = key
	root := p.images.Root(key)
	pl.image, pl.lower, pl.shared, pl.env, pl.user = root, append(pl.lower, root), nil, meta.Env, meta.User
	if pl.workdir == "" {
		pl.workdir = meta.Workdir
	}
	pl.readOnly = !pl.options.WritableRoot && !pl.options.Root
	return nil
}

// fetchImage pulls and unpacks an image, unless it is there.
func (p *Provider) fetchImage(ctx context.Context, ref string, options templateOptions) (key string, meta *image.Meta, err error) {
	r, err := image.Parse(ref)
	if err != nil {
		return "", nil, err
	}
	if r.InRegistry() {
		key, meta, err = p.images.Pull(ctx, r, options.Pull)
	} else {
		key, meta, err = p.images.Unpack(ctx, r)
	}
	if err != nil {
		return "", nil, fmt.Errorf("image %s: %w", ref, err)
	}
	return key, meta, nil
}

// makeRoom returns an error that wraps ErrExhausted if the disk is full and has no
// unused images that can go.
func (p *Provider) makeRoom(ctx context.Context) error {
	err := p.space.Check()
	if !errors.Is(err, providers.ErrExhausted) {
		return err
	}
	if failed := p.images.CollectAll(ctx); failed != nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "unused images could not be removed", slog.Any("error", failed))
	}
	return p.space.Check()
}

// pulling describes the pull that a sandbox waits for, if there is one.
func (p *Provider) pulling(spec providers.Spec) string {
	if spec.Image == "" {
		return ""
	}
	r, err := image.Parse(spec.Image)
	if err != nil || !r.InRegistry() {
		return ""
	}
	return p.images.Progress(r)
}

// imagesInUse returns the images of all sandboxes, unclaimed ones included.
func (p *Provider) imagesInUse() (map[string]bool, error) {
	used := make(map[string]bool)
	for b, err := range p.layout.All() {
		if err != nil {
			return nil, err
		}
		rec, err := readRecord(b)
		switch {
		case err == nil:
			used[rec.Image] = true
		case errors.Is(err, shared.ErrCorrupt), errors.Is(err, providers.ErrNotFound):
		default:
			return nil, err
		}
	}
	return used, nil
}
