package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/atomicfile"
	"github.com/sandgate/sandgate/providers/internal/lock"
)

const (
	// idleTime is the time for which an unused image is kept.
	idleTime = 14 * 24 * time.Hour
	// maxStored is the size of all images above which the least recently used go
	// earlier.
	maxStored = 40 << 30
	// minIdleTime is how long an image is kept after its last use in any case: a
	// creation may be about to write the record that names it.
	minIdleTime = 10 * time.Minute
	partPrefix  = ".part-"
)

// Store holds unpacked images in directories named by their digests, each with a
// lock of that name.
type Store struct {
	dir   string
	locks *lock.Table
	log   *slog.Logger
	// admit returns an error if the file system has no space for a file.
	admit func(size int64) error
	// inUse returns the images of all sandboxes.
	inUse      func() (map[string]bool, error)
	registries *registries
	pulls      pulls
}

// NewStore returns the store of a directory. admit, if set, returns an error for a
// file for which there is no space. inUse returns the keys of images that must stay.
// The store must be closed.
func NewStore(dir string, locks *lock.Table, log *slog.Logger, from Registries, admit func(size int64) error, inUse func() (map[string]bool, error)) *Store {
	s := &Store{dir: dir, locks: locks, log: log, admit: admit, inUse: inUse, registries: newRegistries(from)}
	s.pulls.running, s.pulls.turn = make(map[string]*pull), semaphore.NewWeighted(maxPulls)
	s.pulls.ctx, s.pulls.stop = context.WithCancelCause(context.Background())
	return s
}

// Root returns the directory of an image's files.
func (s *Store) Root(key string) string { return filepath.Join(s.image(key), "rootfs") }

func (s *Store) image(key string) string    { return filepath.Join(s.dir, key) }
func (s *Store) metaFile(key string) string { return filepath.Join(s.image(key), "meta.json") }
func (s *Store) part(key string) string     { return filepath.Join(s.dir, partPrefix+key) }

func lockName(key string) string { return "_image-" + key }

// Unpack returns the key and metadata of an image on this machine. It unpacks the
// image on first use.
func (s *Store) Unpack(ctx context.Context, r Reference) (string, *Meta, error) {
	src, err := open(ctx, r)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = src.close() }()
	meta, err := s.unpackOnce(ctx, src)
	return src.key, meta, err
}

func (s *Store) unpackOnce(ctx context.Context, src *source) (*Meta, error) {
	held, err := s.locks.Acquire(ctx, lockName(src.key))
	if err != nil {
		return nil, err
	}
	defer held.Release(true)
	if meta, err := s.unpacked(src.key); err != nil || meta != nil {
		return meta, err
	}
	if err := s.Collect(ctx); err != nil {
		s.log.LogAttrs(ctx, slog.LevelWarn, "cannot remove unused images now", slog.Any("error", err))
	}
	part := s.part(src.key)
	defer func() { _ = os.RemoveAll(part) }()
	meta, err := s.unpackTo(ctx, src, part)
	if err != nil {
		return nil, err
	}
	return meta, os.Rename(part, s.image(src.key))
}

// unpacked returns the metadata of an unpacked image, and nil if there is none. The
// image counts as used now. The caller holds the image's lock.
func (s *Store) unpacked(key string) (*Meta, error) {
	file := s.metaFile(key)
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, nil
	}
	now := time.Now()
	meta := &Meta{}
	return meta, errors.Join(json.Unmarshal(data, meta), os.Chtimes(file, now, now))
}

// unpackTo unpacks an image, its metadata included, and syncs it.
func (s *Store) unpackTo(ctx context.Context, src *source, dir string) (*Meta, error) {
	if s.admit != nil {
		// Unpacked it is seldom smaller. A file that is too large is rejected later.
		if err := s.admit(src.packed); err != nil {
			return nil, err
		}
	}
	root := filepath.Join(dir, "rootfs")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(root, 0o755), os.Chmod(root, 0o755)); err != nil {
		return nil, err
	}
	config, layers, err := src.load()
	if err != nil {
		return nil, err
	}
	if a := config.Architecture; a != "" && a != runtime.GOARCH {
		return nil, fmt.Errorf("the image is for %.40s, not for linux/%s: %w", config.OS+"/"+a, runtime.GOARCH, providers.ErrStartFailed)
	}
	if remote, ok := src.files.(*remoteFiles); ok {
		stop := remote.fetch(dir, layers, s.admit)
		defer stop()
	}
	u := newUnpacker(root)
	u.admit = s.admit
	if err := u.image(ctx, src.files, layers, config.RootFS.DiffIDs); err != nil {
		return nil, err
	}
	if err := checkRoot(root); err != nil {
		return nil, err
	}
	meta := readMeta(config, root)
	meta.Bytes = maxBytes - u.files
	if err := atomicfile.WriteJSON(filepath.Join(dir, "meta.json"), meta); err != nil {
		return nil, err
	}
	return meta, syncFS(dir)
}

// syncFS syncs a file system, so that no image that survives a power cut lacks
// its files.
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

// Sweep removes images that killed servers have left half unpacked.
func (s *Store) Sweep() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		key, ok := strings.CutPrefix(e.Name(), partPrefix)
		if !ok {
			continue
		}
		if err := s.remove(key, s.part(key)); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a directory of an image unless its lock is held.
func (s *Store) remove(key, dir string) error {
	held, err := s.locks.Try(lockName(key))
	if err != nil || held == nil {
		return err
	}
	defer held.Release(true)
	gone := s.part(key)
	if dir != gone {
		// A half removed image must not be used.
		if err := errors.Join(os.RemoveAll(gone), os.Rename(dir, gone)); err != nil {
			return err
		}
	}
	return os.RemoveAll(gone)
}

// stored is an image of the store.
type stored struct {
	key   string
	bytes int64
	used  time.Time
}

// Collect removes images that no sandbox uses and that were not used for long, and
// more if all together are too large.
func (s *Store) Collect(ctx context.Context) error { return s.collect(ctx, idleTime) }

// CollectAll removes all images that no sandbox uses, except those used just now: the
// disk is full.
func (s *Store) CollectAll(ctx context.Context) error { return s.collect(ctx, minIdleTime) }

func (s *Store) collect(ctx context.Context, keep time.Duration) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	var all []stored
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		file := s.metaFile(e.Name())
		info, err := os.Stat(file)
		if err != nil {
			continue
		}
		var meta Meta
		if data, err := os.ReadFile(file); err == nil {
			_ = json.Unmarshal(data, &meta)
		}
		all = append(all, stored{e.Name(), meta.Bytes, info.ModTime()})
	}
	inUse, err := s.inUse()
	if err != nil {
		return err
	}
	for _, img := range unused(all, inUse, keep, time.Now()) {
		if err := s.remove(img.key, s.image(img.key)); err != nil {
			return err
		}
		s.log.LogAttrs(ctx, slog.LevelInfo, "removed an unused image", slog.String("digest", img.key), slog.Int64("bytes", img.bytes))
	}
	return s.forgetNames()
}

// unused chooses the images to remove: those idle for the time keep, and more if all
// are too large.
func unused(all []stored, inUse map[string]bool, keep time.Duration, now time.Time) []stored {
	slices.SortFunc(all, func(a, b stored) int { return a.used.Compare(b.used) })
	var total int64
	for _, img := range all {
		total += img.bytes
	}
	var out []stored
	for _, img := range all {
		idle := now.Sub(img.used)
		if inUse[img.key] || idle < minIdleTime || idle < keep && total <= maxStored {
			continue
		}
		out = append(out, img)
		total -= img.bytes
	}
	return out
}
