package files

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/paths"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const defaultDirMode = 0o755

// MakeDirectory makes a directory and, if requested, its parents.
func (s *Service) MakeDirectory(ctx context.Context, r *sandboxv1.MakeDirectoryRequest) (*sandboxv1.MakeDirectoryResponse, error) {
	_, c, err := s.open(ctx, s.work)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	mode := uint32(defaultDirMode)
	if r.Mode != nil {
		mode = r.GetMode()
	}
	if mode > maxMode {
		return nil, requestFault("mode", "permission bits only")
	}
	created, err := makeDirectory(c.view, r.GetPath(), r.GetParents(), mode)
	if err != nil {
		return nil, asFault(r.GetPath(), err)
	}
	return &sandboxv1.MakeDirectoryResponse{Created: created}, nil
}

func makeDirectory(v *paths.View, path string, parents bool, mode uint32) (bool, error) {
	loc, err := v.Locate(path, paths.Lookup{Access: paths.Write, Parents: parents})
	if errors.Is(err, paths.ErrFixed) && parents {
		return false, isDir(v, path)
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = loc.Close() }()
	err = unix.Mkdirat(loc.FD(), loc.Name, mode|0o700)
	if errors.Is(err, unix.EEXIST) && parents {
		return false, isDir(v, path)
	}
	if err != nil {
		return false, err
	}
	return true, exactMode(loc, mode)
}

// exactMode sets the mode that the umask reduced. It uses a descriptor, so that it never
// follows a link that replaced the directory.
func exactMode(loc *paths.Location, mode uint32) error {
	fd, err := unix.Openat(loc.FD(), loc.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Fchmod(fd, mode)
}

// isDir returns EEXIST unless the path is a directory or a link to one.
func isDir(v *paths.View, path string) error {
	f, err := v.Open(path, unix.O_PATH|unix.O_DIRECTORY, paths.Write)
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENOENT):
		return unix.EEXIST
	case err != nil:
		return err
	}
	return f.Close()
}
