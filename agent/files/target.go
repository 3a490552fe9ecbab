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
	// hidden begins the name of a file that is not in its place yet, for the
	// moment before it is, or all the time where nameless files cannot be made.
	hidden = ".sandgate-"

	defaultMode = 0o644
	maxMode     = 0o7777
)

// target is the place of a file that is to be created or replaced.
type target struct {
	loc     *paths.Location
	path    string
	exists  bool
	old     unix.Stat_t // of the file that is there
	mode    *uint32     // as asked for
	newOnly bool
	edited  *unix.Stat_t // the file that must still be there, nil for any
}

// openTarget finds the place of path and makes its parents. A link is followed,
// also where it leads to nothing yet, unless only a new file may be made.
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

// inspect looks at what is there and refuses what cannot be replaced.
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
	// Renaming over it needs no permission on the file, writing to it would.
	return unix.Faccessat(t.loc.FD(), t.loc.Name, unix.W_OK, unix.AT_EACCESS)
}

func (t *target) close() error { return t.loc.Close() }

// draft is a file that is not in its place yet. It has no name, so that it goes
// with the agent, however that ends; where the file system cannot do that, it
// has a hidden one.
type draft struct {
	*os.File
	dir  int    // descriptor of its directory, owned by somebody else
	name string // empty: none
}

// newDraft makes a file in a directory, readable by nobody else yet.
func (s *Service) newDraft(dir int) (*draft, error) {
	if !s.cfg.NoTmpfile {
		fd, err := unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err == nil {
			return &draft{File: os.NewFile(uintptr(fd), "draft"), dir: dir}, nil
		}
	}
	return newHidden(dir)
}

// newHidden makes a draft that has a name.
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

// link gives a nameless draft a name, which must be free.
func (d *draft) link(dir int, name string) error {
	return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(d.Fd())), dir, name, unix.AT_SYMLINK_FOLLOW)
}

// maxVector is how many pieces the kernel takes at once.
const maxVector = 1024

// writeAll appends the pieces and returns how many bytes of them it wrote.
func (d *draft) writeAll(parts [][]byte) (int, error) {
	total := 0
	skip := 0 // bytes of the first piece that are written
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

// discard closes and removes the file. It may be called after land.
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

// land puts the draft into the target's place, with its mode, and closes it. On
// an error the draft is still there.
func (s *Service) land(ctx context.Context, t *target, d *draft) (created bool, err error) {
	unlock, err := s.locks.lock(ctx, t.loc)
	if err != nil {
		return false, err
	}
	defer unlock()
	return s.landLocked(t, d)
}

func (s *Service) landLocked(t *target, d *draft) (created bool, err error) {
	// What is there may have changed since the target was opened.
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
	if err := t.dress(d); err != nil {
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

// dress gives the file the mode, and where the agent may, the owner of the file
// that it replaces.
func (t *target) dress(d *draft) error {
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
		// Only a rename replaces.
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

// renameNew renames and fails with EEXIST when the new name is taken.
func renameNew(fromDir int, from string, toDir int, to string) error {
	err := unix.Renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// The file system or the runtime lacks the flag. A link is as atomic, but
	// not for directories; rename replaces an empty one at most.
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

// copyFrom lands a draft that is on another file system.
func (t *target) copyFrom(d *draft) error {
	if _, err := d.Seek(0, 0); err != nil {
		return err
	}
	near, err := newHidden(t.loc.FD())
	if err != nil {
		return err
	}
	if _, err = near.ReadFrom(d.File); err == nil {
		if err = t.dress(near); err == nil {
			err = t.rename(near)
		}
	}
	if err != nil {
		return errors.Join(err, near.discard())
	}
	return errors.Join(near.Close(), d.unlink())
}
