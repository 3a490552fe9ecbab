package paths

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrFixed is returned for the root and for a path that ends in "..": they have no name
// that can be changed. It wraps ErrInvalid.
var ErrFixed = fmt.Errorf("%w: it names a directory that cannot be moved, replaced or removed", ErrInvalid)

// Location is a name in an open directory. The file need not exist.
type Location struct {
	// Dir is opened with O_PATH; the holder closes it.
	Dir *os.File
	// Name is one component, never "." or "..".
	Name string
	// Real is the resolved path, if the view checks paths.
	Real string
}

// Close closes the directory.
func (l *Location) Close() error {
	if l.Dir == nil {
		return nil
	}
	return l.Dir.Close()
}

// FD returns the descriptor of the directory.
func (l *Location) FD() int { return int(l.Dir.Fd()) }

// Lookup configures Locate.
type Lookup struct {
	// Access is checked on the location.
	Access Access
	// Follow resolves links at the last component too.
	Follow bool
	// Parents makes missing parent directories.
	Parents bool
}

// Locate resolves all of path but its last component. The root itself and a
// path that ends in ".." are ErrFixed.
func (v *View) Locate(path string, how Lookup) (*Location, error) {
	parts, err := v.parts(path)
	if err != nil {
		return nil, err
	}
	if len(parts) == 0 || parts[len(parts)-1] == ".." {
		return nil, ErrFixed
	}
	loc, err := v.locate(parts, how)
	if err != nil {
		return nil, err
	}
	if v.Checks() {
		if loc.Real, err = realName(loc.FD(), loc.Name); err == nil {
			err = v.Check(loc.Real, how.Access)
		}
		if err != nil {
			return nil, errors.Join(err, loc.Close())
		}
	}
	return loc, nil
}

func (v *View) locate(parts []string, how Lookup) (*Location, error) {
	last := len(parts) - 1
	dir, err := v.open(parts[:last], unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
	name := parts[last]
	switch {
	case errors.Is(err, unix.ENOENT) && how.Parents:
		dir, name, err = v.walk(parts, how.Follow, true)
	case err == nil && how.Follow:
		if _, lerr := readlinkat(dir, name); lerr == nil {
			_ = unix.Close(dir)
			dir, name, err = v.walk(parts, true, how.Parents)
		}
	}
	if err != nil {
		return nil, err
	}
	if name == "." {
		_ = unix.Close(dir)
		return nil, unix.EISDIR
	}
	return &Location{Dir: os.NewFile(uintptr(dir), "/"+join(parts[:last])), Name: name}, nil
}
