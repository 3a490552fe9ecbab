package files

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/paths"
)

const (
	// hidden is the prefix of a draft's name. An unnamed draft has a name only for the
	// moment of the rename.
	hidden = ".sandgate-"

	defaultMode = 0o644
	maxMode     = 0o7777
)

// target is the path of a file to create or replace.
type target struct {
	loc     *paths.Location
	path    string
	exists  bool
	old     unix.Stat_t // of the existing file
	mode    *uint32     // as requested, or nil
	newOnly bool
	edited  *unix.Stat_t // the file that must still exist there; nil: any
}

// openTarget locates path and makes its parents. It follows a link, even a dangling one,
// unless the file must be new.
func openTarget(v *paths.View, path string, access paths.Access, mode *uint32, newOnly bool) (*target, error) {
	if mode != nil && *mode > maxMode {
		return nil, requestFault("mode", "permission bits only")
	}
	loc, err := v.Locate(path, paths.Lookup{Access: access, Follow: !newOnly, Parents: true})
	if err != nil {
		return nil, err
	}
	t := &target{loc: loc, path: path, mode: mode, newOnly: newOnly}
	if err := t.inspect(); err != nil {
		return nil, errors.Join(err, loc.Close())
	}
	return t, nil
}

func optional(set bool, mode uint32) *uint32 {
	if !set {
		return nil
	}
	return &mode
}

// inspect checks that the existing file, if any, can be replaced.
func (t *target) inspect() error {
	t.exists = false
	err := unix.Fstatat(t.loc.FD(), t.loc.Name, &t.old, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return err
	case t.newOnly:
		return unix.EEXIST
	}
	t.exists = true
	switch t.old.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return unix.EISDIR
	default:
		return unix.ENXIO
	}
	// A rename needs no permission on the file, but a write would.
	return unix.Faccessat(t.loc.FD(), t.loc.Name, unix.W_OK, unix.AT_EACCESS)
}

func (t *target) close() error { return t.loc.Close() }

// draft is the new content of a target before the rename. It is unnamed, so that it
// disappears with the agent, or hidden if the file system has no unnamed files.
type draft struct {
	*os.File
	dir  int    // descriptor of its directory, which the draft does not own
	name string // empty: none
}

// newDraft makes a draft in a directory, with mode 0600.
func (s *Service) newDraft(dir int) (*draft, error) {
	if !s.cfg.NoTmpfile {
		fd, err := unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err == nil {
			return &draft{File: os.NewFile(uintptr(fd), "draft"), dir: dir}, nil
		}
	}
	return newHidden(dir)
}

// newHidden makes a hidden draft.
func newHidden(dir int) (*draft, error) {
	for {
		name := hiddenName()
		fd, err := unix.Openat(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		switch {
		case err == nil:
			return &draft{File: os.NewFile(uintptr(fd), name), dir: dir, name: name}, nil
		case !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EINTR):
			return nil, err
		}
	}
}

func hiddenName() string {
	var random [12]byte
	_, _ = rand.Read(random[:])
	return hidden + hex.EncodeToString(random[:])
}

// link gives an unnamed draft a name, which must not exist.
func (d *draft) link(dir int, name string) error {
	return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(d.Fd())), dir, name, unix.AT_SYMLINK_FOLLOW)
}

// maxVector is how many slices writev accepts.
const maxVector = 1024

// writeAll appends the slices and returns how many bytes it wrote.
func (d *draft) writeAll(parts [][]byte) (int, error) {
	total := 0
	skip := 0 // bytes of the first slice that are written
	for len(parts) > 0 {
		batch := parts[:min(len(parts), maxVector)]
		if skip > 0 {
			batch = append([][]byte{parts[0][skip:]}, batch[1:]...)
		}
		n, err := unix.Writev(int(d.Fd()), batch)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return total, os.NewSyscallError("write", err)
		}
		total += n
		for skip += n; len(parts) > 0 && skip >= len(parts[0]); parts = parts[1:] {
			skip -= len(parts[0])
		}
	}
	return total, nil
}

// discard closes and removes the draft. It may be called after land.
func (d *draft) discard() error {
	err := d.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return errors.Join(err, d.unlink())
}

func (d *draft) unlink() error {
	if d.name == "" {
		return nil
	}
	return unix.Unlinkat(d.dir, d.name, 0)
}

// land moves the draft to the target, with the right mode, and closes it. On an error
// the draft still exists.
func (s *Service) land(ctx context.Context, t *target, d *draft) (created bool, err error) {
	unlock, err := s.locks.lock(ctx, t.loc)
	if err != nil {
		return false, err
	}
	defer unlock()
	return s.landLocked(t, d)
}

func (s *Service) landLocked(t *target, d *draft) (created bool, err error) {
	// The file may have changed since the target was opened.
	if err := t.inspect(); err != nil {
		return false, err
	}
	switch {
	case t.edited == nil:
	case !t.exists:
		return false, unix.ENOENT
	case t.old.Dev != t.edited.Dev || t.old.Ino != t.edited.Ino:
		return false, pathFault(fileIO, t.path, "the file was replaced while it was edited")
	}
	if err := t.setAttributes(d); err != nil {
		return false, err
	}
	err = t.rename(d)
	if errors.Is(err, unix.EXDEV) {
		err = t.copyFrom(d)
	}
	if err != nil {
		return false, err
	}
	return !t.exists, d.Close()
}

// setAttributes sets the mode and, if permitted, the owner of the replaced file.
func (t *target) setAttributes(d *draft) error {
	fd := int(d.Fd())
	if t.exists && unix.Geteuid() == 0 && (t.old.Uid != 0 || t.old.Gid != 0) {
		if err := unix.Fchown(fd, int(t.old.Uid), int(t.old.Gid)); err != nil && !errors.Is(err, unix.EPERM) {
			return err
		}
	}
	mode := uint32(defaultMode)
	switch {
	case t.mode != nil:
		mode = *t.mode
	case t.exists:
		mode = t.old.Mode & 0o777
	}
	return unix.Fchmod(fd, mode)
}

func (t *target) rename(d *draft) error {
	if d.name == "" {
		if !t.exists {
			err := d.link(t.loc.FD(), t.loc.Name)
			if t.newOnly || !errors.Is(err, unix.EEXIST) {
				return err
			}
		}
		// link can't replace a file, only rename can.
		name := hiddenName()
		if err := d.link(d.dir, name); err != nil {
			return err
		}
		d.name = name
	}
	if !t.newOnly {
		return unix.Renameat(d.dir, d.name, t.loc.FD(), t.loc.Name)
	}
	return renameNew(d.dir, d.name, t.loc.FD(), t.loc.Name)
}

// renameNew renames, and fails with EEXIST if the new name exists.
func renameNew(fromDir int, from string, toDir int, to string) error {
	err := unix.Renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// The file system or the runtime lacks the flag. linkat is as atomic, but not for
	// directories; rename replaces only an empty one.
	var st unix.Stat_t
	if serr := unix.Fstatat(fromDir, from, &st, unix.AT_SYMLINK_NOFOLLOW); serr != nil {
		return serr
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if lerr := unix.Linkat(fromDir, from, toDir, to, 0); lerr != nil {
			return lerr
		}
		return unix.Unlinkat(fromDir, from, 0)
	}
	switch serr := unix.Fstatat(toDir, to, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case serr == nil:
		return unix.EEXIST
	case !errors.Is(serr, unix.ENOENT):
		return serr
	}
	return unix.Renameat(fromDir, from, toDir, to)
}

// copyFrom copies a draft from another file system: a link in the path of a resumable
// upload may have changed since its draft was made.
func (t *target) copyFrom(d *draft) error {
	if _, err := d.Seek(0, 0); err != nil {
		return err
	}
	near, err := newHidden(t.loc.FD())
	if err != nil {
		return err
	}
	if _, err = near.ReadFrom(d.File); err == nil {
		if err = t.setAttributes(near); err == nil {
			err = t.rename(near)
		}
	}
	if err != nil {
		return errors.Join(err, near.discard())
	}
	return errors.Join(near.Close(), d.unlink())
}
