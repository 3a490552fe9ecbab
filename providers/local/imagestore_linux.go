package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/atomicfile"
)

// Unpacked images lie in directories named by their digest, each with a lock of
// that name. Images that no sandbox uses are removed after a while, the longest
// unused first when there are too many.
const (
	imageIdle     = 14 * 24 * time.Hour
	imageStoreMax = 40 << 30
	// imageBusy is how long an image is kept after its last use in any case: a
	// creation may be about to write the record that names it.
	imageBusy = 10 * time.Minute
	imagePart = ".part-"
)

func imageLock(key string) string { return "_image-" + key }

// unpacked returns an image's key and what is known of it, and unpacks it on first
// use.
func (p *Provider) unpacked(ctx context.Context, r reference) (string, *imageMeta, error) {
	src, err := openImage(ctx, r)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = src.close() }()
	meta, err := p.unpackOnce(ctx, src)
	return src.key, meta, err
}

func (p *Provider) unpackOnce(ctx context.Context, src *imageSource) (*imageMeta, error) {
	held, err := p.locks.Acquire(ctx, imageLock(src.key))
	if err != nil {
		return nil, err
	}
	defer held.Release(true)
	dir := p.layout.image(src.key)
	metaFile := filepath.Join(dir, "meta.json")
	meta := &imageMeta{}
	if data, err := os.ReadFile(metaFile); err == nil {
		now := time.Now()
		return meta, errors.Join(json.Unmarshal(data, meta), os.Chtimes(metaFile, now, now))
	}
	if err := p.collectImages(ctx); err != nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "unused images cannot be removed now", slog.Any("error", err))
	}
	part := filepath.Join(p.layout.images(), imagePart+src.key)
	defer func() { _ = os.RemoveAll(part) }()
	root := filepath.Join(part, "rootfs")
	if err := errors.Join(os.RemoveAll(part), os.MkdirAll(root, 0o755), os.Chmod(root, 0o755)); err != nil {
		return nil, err
	}
	config, layers, err := src.load()
	if err != nil {
		return nil, err
	}
	u := newUnpacker(root)
	u.room = p.space.CheckFile
	if err := u.image(ctx, src.files, layers, config.RootFS.DiffIDs); err != nil {
		return nil, err
	}
	if err := checkRoot(root); err != nil {
		return nil, err
	}
	meta = readMeta(config, root)
	meta.Bytes = maxImageBytes - u.files
	if err := atomicfile.WriteJSON(filepath.Join(part, "meta.json"), meta); err != nil {
		return nil, err
	}
	if err := syncFS(part); err != nil {
		return nil, err
	}
	return meta, os.Rename(part, dir)
}

// syncFS writes out a file system, so that a name never stands for files that the
// machine lost.
func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// sweepImages removes what killed servers had not finished unpacking.
func (p *Provider) sweepImages() error {
	entries, err := os.ReadDir(p.layout.images())
	if err != nil {
		return err
	}
	for _, e := range entries {
		key, ok := strings.CutPrefix(e.Name(), imagePart)
		if !ok {
			continue
		}
		if err := p.dropImage(key, filepath.Join(p.layout.images(), e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// dropImage removes a directory of an image that nobody is at work on.
func (p *Provider) dropImage(key, dir string) error {
	held, err := p.locks.Try(imageLock(key))
	if err != nil || held == nil {
		return err
	}
	defer held.Release(true)
	gone := filepath.Join(p.layout.images(), imagePart+key)
	if dir != gone {
		// Half an image must not be taken for one.
		if err := errors.Join(os.RemoveAll(gone), os.Rename(dir, gone)); err != nil {
			return err
		}
	}
	return os.RemoveAll(gone)
}

// storedImage is an image as the collector sees it.
type storedImage struct {
	key   string
	bytes int64
	used  time.Time
}

// collectImages removes images that no sandbox uses, and that were not used for
// long or are too many.
func (p *Provider) collectImages(ctx context.Context) error {
	entries, err := os.ReadDir(p.layout.images())
	if err != nil {
		return err
	}
	var stored []storedImage
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		file := filepath.Join(p.layout.image(e.Name()), "meta.json")
		info, err := os.Stat(file)
		if err != nil {
			continue
		}
		var meta imageMeta
		if data, err := os.ReadFile(file); err == nil {
			_ = json.Unmarshal(data, &meta)
		}
		stored = append(stored, storedImage{e.Name(), meta.Bytes, info.ModTime()})
	}
	inUse, err := p.imagesInUse()
	if err != nil {
		return err
	}
	for _, img := range unusedImages(stored, inUse, time.Now()) {
		if err := p.dropImage(img.key, p.layout.image(img.key)); err != nil {
			return err
		}
		p.log.LogAttrs(ctx, slog.LevelInfo, "removed an image that no sandbox uses", slog.String("digest", img.key), slog.Int64("bytes", img.bytes))
	}
	return nil
}

// unusedImages chooses what to remove.
func unusedImages(stored []storedImage, inUse map[string]bool, now time.Time) []storedImage {
	slices.SortFunc(stored, func(a, b storedImage) int { return a.used.Compare(b.used) })
	var total int64
	for _, img := range stored {
		total += img.bytes
	}
	var out []storedImage
	for _, img := range stored {
		idle := now.Sub(img.used)
		if inUse[img.key] || idle < imageBusy || idle < imageIdle && total <= imageStoreMax {
			continue
		}
		out = append(out, img)
		total -= img.bytes
	}
	return out
}

// imagesInUse lists the images of all sandboxes, also of unclaimed ones. The pool
// is read first, because that is the way a claim goes.
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
