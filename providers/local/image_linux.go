package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/image"
)

// useImage makes an image the root of the plan. The image is unpacked on first
// use.
func (p *Provider) useImage(ctx context.Context, pl *plan, rec *record, ref string) error {
	r, err := image.Parse(ref)
	if err != nil {
		return err
	}
	key, meta, err := p.images.Unpack(ctx, r)
	if err != nil {
		return fmt.Errorf("image %s: %w", ref, err)
	}
	rec.Image = key
	root := p.images.Root(key)
	pl.image, pl.lower, pl.shared, pl.env, pl.user = root, []string{p.host.Skeleton, root}, nil, meta.Env, meta.User
	if pl.workdir == "" {
		pl.workdir = meta.Workdir
	}
	pl.readOnly = !pl.options.WritableRoot
	return nil
}

// imagesInUse returns the images of all sandboxes, unclaimed ones included. It
// reads the pool first, because claims move sandboxes from there.
func (p *Provider) imagesInUse() (map[string]bool, error) {
	used := make(map[string]bool)
	for _, dir := range []string{p.layout.pool(), p.layout.sandboxes()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			rec, err := readRecord(bundle(filepath.Join(dir, e.Name())))
			switch {
			case err == nil:
				used[rec.Image] = true
			case errors.Is(err, errCorrupt), errors.Is(err, providers.ErrNotFound):
			default:
				return nil, err
			}
		}
	}
	return used, nil
}
