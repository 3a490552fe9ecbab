package files

import (
	"context"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/paths"
	"github.com/sandgate/sandgate/agent/files/walk"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// RemoveFile removes a file, a link itself, or a directory. The root directory
// is never removed.
func (s *Service) RemoveFile(ctx context.Context, r *sandboxv1.RemoveFileRequest) (*sandboxv1.RemoveFileResponse, error) {
	ctx, c, err := s.open(ctx, s.walks)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	err = s.remove(ctx, c.view, r)
	if errors.Is(err, unix.ENOENT) && r.GetAllowMissing() {
		return &sandboxv1.RemoveFileResponse{}, nil
	}
	if err != nil {
		return nil, asFault(r.GetPath(), err)
	}
	return &sandboxv1.RemoveFileResponse{Removed: true}, nil
}

func (s *Service) remove(ctx context.Context, v *paths.View, r *sandboxv1.RemoveFileRequest) error {
	loc, err := v.Locate(r.GetPath(), paths.Lookup{Access: paths.Write})
	if err != nil {
		return err
	}
	defer func() { _ = loc.Close() }()
	// A running edit must not restore the file.
	unlock, err := s.locks.lock(ctx, loc)
	if err != nil {
		return err
	}
	defer unlock()
	err = unix.Unlinkat(loc.FD(), loc.Name, 0)
	if !isDirectoryError(err) {
		return err
	}
	if !r.GetRecursive() {
		return rmdir(loc.FD(), loc.Name, err)
	}
	rm := remover{view: v}
	rm.tree(ctx, entry{dir: loc.FD(), name: loc.Name, real: loc.Real}, 0)
	return rm.err
}

// isDirectoryError reports whether unlink failed because of a directory: EISDIR
// on Linux, EPERM by the standard and on some file systems.
func isDirectoryError(err error) bool {
	return errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM)
}

// rmdir removes an empty directory. If it is no directory, rmdir returns before, the
// error of the earlier unlink.
func rmdir(dir int, name string, before error) error {
	err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return before
	case errors.Is(err, unix.EEXIST):
		return unix.ENOTEMPTY
	}
	return err
}

const (
	// maxDepth is how many directories a removal holds open. It moves deeper ones up
	// first, so that no tree is too deep.
	maxDepth = 256
	// maxPasses bounds how often a directory is read again because it is not empty:
	// files are added meanwhile, or the file system skipped entries because others
	// were removed.
	maxPasses = 3
)

// remover removes trees by descriptors, so that it never follows a link that replaced a
// directory. It continues after an error and returns the first one.
type remover struct {
	view   *paths.View
	top    int // descriptor of the tree's first directory
	moved  int // directories that were moved up to it
	failed int
	err    error
}

// entry is a directory to remove.
type entry struct {
	dir  int
	name string
	real string // resolved path, if the view checks paths
}

func (r *remover) keep(err error) {
	if err == nil || errors.Is(err, unix.ENOENT) {
		return
	}
	r.failed++
	if r.err == nil {
		r.err = err
	}
}

func (r *remover) tree(ctx context.Context, e entry, depth int) {
	if depth == maxDepth && !r.view.Checks() {
		up := hidden + "removed-" + strconv.Itoa(r.moved)
		if renameNew(e.dir, e.name, r.top, up) == nil {
			r.moved++
			return
		}
	}
	for pass := 0; pass < maxPasses; pass++ {
		failed, moved := r.failed, r.moved
		r.empty(ctx, e, depth)
		if r.failed != failed || ctx.Err() != nil {
			return
		}
		err := rmdir(e.dir, e.name, nil)
		if !errors.Is(err, unix.ENOTEMPTY) {
			r.keep(err)
			return
		}
		if r.moved != moved {
			pass = -1
		}
	}
	r.keep(unix.ENOTEMPTY)
}

// empty removes the content of a directory.
func (r *remover) empty(ctx context.Context, e entry, depth int) {
	fd, err := unix.Openat(e.dir, e.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		// Not a directory, or no longer: the error of unlink counts.
		if err := unix.Unlinkat(e.dir, e.name, 0); !errors.Is(err, unix.EISDIR) {
			r.keep(err)
		}
		return
	case err != nil:
		// An unreadable directory may be empty.
		if rmdir(e.dir, e.name, err) != nil {
			r.keep(err)
		}
		return
	}
	defer func() { _ = unix.Close(fd) }()
	if depth == 0 {
		r.top = fd
	}
	list := walk.NewReader(fd)
	for {
		entries, err := list.Next()
		if err != nil || len(entries) == 0 {
			r.keep(err)
			return
		}
		for _, sub := range entries {
			if cause := context.Cause(ctx); cause != nil {
				r.keep(cause)
				return
			}
			r.one(ctx, entry{dir: fd, name: sub.Name, real: e.real}, sub.IsDir(), depth)
		}
	}
}

func (r *remover) one(ctx context.Context, e entry, isDir bool, depth int) {
	if r.view.Checks() {
		e.real = paths.Join(e.real, e.name)
		if err := r.view.Check(e.real, paths.Write); err != nil {
			r.keep(err)
			return
		}
	}
	if !isDir {
		if err := unix.Unlinkat(e.dir, e.name, 0); !isDirectoryError(err) {
			r.keep(err)
			return
		}
	}
	r.tree(ctx, e, depth+1)
}
