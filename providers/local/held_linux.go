package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A server holds the directories that its sandboxes are made from: of the agent and
// of the host's userland. Each has a shared lock for the server's life. A starting
// server removes those that no server holds and no sandbox uses.

// held is directories that no server removes until it is closed.
type held []*os.File

// hold makes directories and holds them.
func hold(make func() ([]string, error)) (held, error) {
	for tries := 0; ; tries++ {
		dirs, err := make()
		var h held
		for i := 0; i < len(dirs) && err == nil; i++ {
			var f *os.File
			if f, err = lockDir(dirs[i], unix.LOCK_SH); err == nil {
				h = append(h, f)
			}
		}
		if err == nil {
			return h, nil
		}
		err = errors.Join(err, h.Close())
		if !errors.Is(err, fs.ErrNotExist) || tries == 10 {
			return nil, err
		}
		// Another server removed one meanwhile.
	}
}

func (h held) Close() error {
	var errs []error
	for _, f := range h {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// lockDir locks a directory until the file is closed. The error wraps
// fs.ErrNotExist if the directory was removed before it was locked, also if there is
// a new one.
func lockDir(dir string, how int) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(f.Fd()), how); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	locked, err := f.Stat()
	if err == nil {
		var there fs.FileInfo
		if there, err = os.Stat(dir); err == nil && os.SameFile(locked, there) {
			return f, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("%s: %w", dir, fs.ErrNotExist)
	}
	return nil, errors.Join(err, f.Close())
}

// removedPrefix begins the name of a directory that is being removed: one under its
// own name is whole. Others that begin with a dot are being made.
const removedPrefix = ".removed-"

// collect removes the directories of a parent that no server holds and that are not
// in use.
func (p *Provider) collect(ctx context.Context, parent string, inUse func(dir string) bool) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "cannot look for unused directories", slog.Any("error", err))
		return
	}
	for _, e := range entries {
		dir := filepath.Join(parent, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), removedPrefix):
			err = os.RemoveAll(dir)
		case strings.HasPrefix(e.Name(), "."):
			continue
		default:
			var removed bool
			if removed, err = removeUnused(dir, inUse); !removed && err == nil {
				continue
			}
		}
		if err != nil {
			p.log.LogAttrs(ctx, slog.LevelWarn, "cannot remove an unused directory", slog.String("path", dir), slog.Any("error", err))
			continue
		}
		p.log.LogAttrs(ctx, slog.LevelInfo, "removed an unused directory", slog.String("path", dir))
	}
}

// removeUnused removes a directory, unless a server holds it or it is in use. It asks
// for the use under the lock: what a server made from the directory is on disk before
// that server lets go of it.
func removeUnused(dir string, inUse func(dir string) bool) (removed bool, err error) {
	f, err := lockDir(dir, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	if inUse(dir) {
		return false, nil
	}
	away := filepath.Join(filepath.Dir(dir), removedPrefix+filepath.Base(dir))
	if err := os.Rename(dir, away); err != nil {
		return false, err
	}
	return true, os.RemoveAll(away)
}
