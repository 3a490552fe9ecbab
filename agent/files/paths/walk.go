package paths

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many links the kernel follows for one path.
const maxLinks = 40

// maxTarget is the longest target of a link.
const maxTarget = unix.PathMax

// resolver resolves a path component by component. Every step opens one name relative to
// an open descriptor without following links; links are read and their targets resolved
// in the same way. So no race leads out of the root: every step starts inside.
type resolver struct {
	view    *View
	stack   []int // directories from the root to the current one
	links   int
	follow  bool // a link as the last component is followed
	create  bool // missing directories are made
	pending []string
}

// walk returns the directory of the last component, and its name, which is "." if the
// path ends at the directory itself. The caller closes the directory. The last component
// need not exist.
func (v *View) walk(path []string, follow, create bool) (dir int, name string, err error) {
	root, err := v.start()
	if err != nil {
		return -1, "", err
	}
	w := &resolver{view: v, stack: []int{root}, follow: follow, create: create, pending: path}
	defer w.close()
	if name, err = w.run(); err != nil {
		return -1, "", err
	}
	last := len(w.stack) - 1
	dir = w.stack[last]
	w.stack = w.stack[:last]
	return dir, name, nil
}

func (v *View) start() (int, error) {
	if v.root == nil {
		return openat(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
	}
	return openat(int(v.root.Fd()), ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
}

func (w *resolver) close() {
	for _, fd := range w.stack {
		_ = unix.Close(fd)
	}
}

func (w *resolver) top() int { return w.stack[len(w.stack)-1] }

func (w *resolver) run() (string, error) {
	for len(w.pending) > 0 {
		c := w.pending[0]
		w.pending = w.pending[1:]
		switch {
		case c == ".":
		case c == "..":
			if err := w.up(); err != nil {
				return "", err
			}
		case len(w.pending) > 0:
			if err := w.enter(c); err != nil {
				return "", err
			}
		default:
			isLink, err := w.last(c)
			if err != nil || !isLink {
				return c, err
			}
		}
	}
	return ".", nil
}

func (w *resolver) up() error {
	n := len(w.stack)
	switch {
	case n > 1:
		_ = unix.Close(w.stack[n-1])
		w.stack = w.stack[:n-1]
	case w.view.root != nil && !w.view.virtual:
		return ErrOutside
	}
	return nil
}

// enter makes the directory c, or the target of the link c, the current one.
func (w *resolver) enter(c string) error {
	for try := range tries {
		fd, err := openat(w.top(), c, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
		switch {
		case err == nil:
			w.stack = append(w.stack, fd)
			return nil
		case errors.Is(err, unix.ENOENT) && w.create && try < tries-1:
			if err := w.mkdir(c); err != nil {
				return err
			}
			continue
		case !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP):
			return err
		}
		isLink, lerr := w.link(c)
		switch {
		case lerr != nil:
			return lerr
		case isLink:
			return nil
		}
		// Neither a directory nor a link, unless it was replaced in between.
		if try > 0 {
			return unix.ENOTDIR
		}
	}
	return unix.ELOOP
}

func (w *resolver) mkdir(c string) error {
	if err := w.view.checkName(w.top(), c, Write); err != nil {
		return err
	}
	err := unix.Mkdirat(w.top(), c, 0o755)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

func (w *resolver) last(c string) (isLink bool, err error) {
	if !w.follow {
		return false, nil
	}
	return w.link(c)
}

// link queues the target of the link c. It returns false if c is no link or does not
// exist.
func (w *resolver) link(c string) (bool, error) {
	target, err := readlinkat(w.top(), c)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, err
	}
	if w.links++; w.links > maxLinks {
		return false, unix.ELOOP
	}
	if !strings.HasPrefix(target, "/") {
		w.pending = append(targetComponents(target), w.pending...)
		return true, nil
	}
	// The targets of magic links in /proc are no paths. openat2 rejects them, and so
	// does this.
	if magic, err := onProc(w.top()); err != nil || magic {
		return false, errors.Join(err, unix.ELOOP)
	}
	parts := targetComponents(target)
	if v := w.view; v.root != nil && !v.virtual {
		rel, ok := relative(parts, v.rootText)
		if !ok {
			rel, ok = relative(parts, components(v.rootReal))
		}
		if !ok {
			return false, ErrOutside
		}
		parts = rel
	}
	for _, fd := range w.stack[1:] {
		_ = unix.Close(fd)
	}
	w.stack = w.stack[:1]
	w.pending = append(parts, w.pending...)
	return true, nil
}

func readlinkat(dir int, name string) (string, error) {
	buf := make([]byte, 256)
	for {
		n, err := unix.Readlinkat(dir, name, buf)
		if err != nil {
			return "", err
		}
		if n < len(buf) || len(buf) >= maxTarget {
			return string(buf[:n]), nil
		}
		buf = make([]byte, maxTarget)
	}
}

func onProc(dir int) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil {
		return false, err
	}
	return st.Type == unix.PROC_SUPER_MAGIC, nil
}

// openWalk opens the path without openat2.
func (v *View) openWalk(path []string, flags int) (int, error) {
	for range tries {
		dir, name, err := v.walk(path, true, false)
		if err != nil {
			return -1, err
		}
		fd, err := openat(dir, name, flags|unix.O_NOFOLLOW)
		swapped := false
		switch {
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
			_, lerr := readlinkat(dir, name)
			swapped = lerr == nil
		case err == nil && flags&unix.O_PATH != 0:
			// O_PATH opens the link itself, where other flags fail.
			var st unix.Stat_t
			err = unix.Fstat(fd, &st)
			swapped = err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
			if err != nil || swapped {
				_ = unix.Close(fd)
			}
		}
		_ = unix.Close(dir)
		if !swapped {
			if err != nil {
				return -1, err
			}
			return fd, nil
		}
	}
	return -1, unix.ELOOP
}
