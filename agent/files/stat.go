package files

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/paths"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// StatFile describes a file without following a link at its name.
func (s *Service) StatFile(ctx context.Context, r *sandboxv1.StatFileRequest) (*sandboxv1.StatFileResponse, error) {
	_, c, err := s.open(ctx, s.work)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	path := r.GetPath()
	info, err := statFile(c.view, path)
	if err != nil {
		return nil, asFault(path, err)
	}
	return &sandboxv1.StatFileResponse{Info: info}, nil
}

func statFile(v *paths.View, path string) (*sandboxv1.FileInfo, error) {
	var st unix.Stat_t
	loc, err := v.Locate(path, paths.Lookup{Access: paths.Read})
	if errors.Is(err, paths.ErrFixed) {
		// The root, or a path that ends in "..": never a link.
		f, err := v.Open(path, unix.O_PATH, paths.Read)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return nil, os.NewSyscallError("fstat", err)
		}
		return fileInfo(path, &st), nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = loc.Close() }()
	if err := unix.Fstatat(loc.FD(), loc.Name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, err
	}
	info := fileInfo(path, &st)
	if info.GetType() == typeSymlink {
		linkInfo(v, info, loc.FD(), loc.Name, path)
	}
	return info, nil
}
