package files

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/paths"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// MoveFile renames within a file system. Policies must allow to read and write the source
// and everything below it, and to write the destination: a move must not make a file
// readable.
func (s *Service) MoveFile(ctx context.Context, r *sandboxv1.MoveFileRequest) (*sandboxv1.MoveFileResponse, error) {
	ctx, c, err := s.open(ctx, s.work)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	from, err := c.view.Locate(r.GetSource(), paths.Lookup{Access: paths.Read | paths.Write})
	if err != nil {
		return nil, asFault(r.GetSource(), err)
	}
	defer func() { _ = from.Close() }()
	var st unix.Stat_t
	if err := unix.Fstatat(from.FD(), from.Name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, asFault(r.GetSource(), err)
	}
	if c.view.Checks() {
		if err := c.view.CheckTree(from.Real); err != nil {
			return nil, asFault(r.GetSource(), err)
		}
	}
	to, err := c.view.Locate(r.GetDestination(), paths.Lookup{Access: paths.Write})
	if err != nil {
		return nil, asFault(r.GetDestination(), err)
	}
	defer func() { _ = to.Close() }()
	if c.view.Checks() {
		if err := c.view.CheckTree(to.Real); err != nil {
			return nil, asFault(r.GetDestination(), err)
		}
	}
	// Lock both names: an edit of the source must not restore it.
	unlock, err := s.locks.lockBoth(ctx, from, to)
	if err != nil {
		return nil, asFault(r.GetDestination(), err)
	}
	defer unlock()
	if r.GetOverwrite() {
		err = unix.Renameat(from.FD(), from.Name, to.FD(), to.Name)
	} else {
		err = renameNew(from.FD(), from.Name, to.FD(), to.Name)
	}
	switch {
	case errors.Is(err, unix.ENOTDIR):
		// A directory onto a file.
		return nil, pathFault(alreadyExists, r.GetDestination(), "is not a directory, and the source is one")
	case err != nil:
		return nil, asFault(r.GetDestination(), err)
	}
	return &sandboxv1.MoveFileResponse{}, nil
}
