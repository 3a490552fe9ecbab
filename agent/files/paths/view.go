package paths

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// View is the file system within the limits of one call. It is safe for concurrent use
// and must be closed.
type View struct {
	root     *os.File // nil: the sandbox's own root, unconfined
	rootText []string
	rootReal string
	virtual  bool
	rules    []rule
	kernel   bool
}

// Options configure how a view resolves.
type Options struct {
	// NoKernel resolves in user space even if the kernel has openat2.
	NoKernel bool
}

// New returns the view that all policies allow, the widest first. The error wraps
// ErrInvalid if a policy is malformed.
func New(policies []Policy, opts Options) (*View, error) {
	v := &View{kernel: !opts.NoKernel && hasOpenat2()}
	if err := v.compile(policies); err != nil {
		_ = v.Close()
		return nil, err
	}
	return v, nil
}

// Close releases the root directory.
func (v *View) Close() error {
	if v.root == nil {
		return nil
	}
	return v.root.Close()
}

// Restricted reports whether anything is forbidden at all.
func (v *View) Restricted() bool { return v.root != nil || len(v.rules) > 0 }

// Open opens a path, follows links, and checks the descriptor. The flags must not create
// or truncate. Open adds O_CLOEXEC and, without O_PATH, O_NOCTTY.
func (v *View) Open(path string, flags int, access Access) (*os.File, error) {
	parts, err := v.parts(path)
	if err != nil {
		return nil, err
	}
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NOCTTY // openat2 refuses it beside O_PATH
	}
	fd, err := v.open(parts, flags|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := v.checkFD(fd, access); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// parts returns the components of path below the view's root.
func (v *View) parts(path string) ([]string, error) {
	parts, err := split(path)
	if err != nil || v.root == nil {
		return parts, err
	}
	for _, c := range parts {
		if c == ".." {
			return nil, fmt.Errorf("%w: \"..\" under a root directory", ErrInvalid)
		}
	}
	if v.virtual {
		return parts, nil
	}
	rel, ok := relative(parts, v.rootText)
	if !ok {
		return nil, ErrOutside
	}
	return rel, nil
}

func (v *View) open(parts []string, flags int) (int, error) {
	text := join(parts)
	switch {
	case !v.Restricted():
		return openat(unix.AT_FDCWD, "/"+text, flags)
	case !v.kernel:
		return v.openWalk(parts, flags)
	}
	dir, resolve := unix.AT_FDCWD, uint64(unix.RESOLVE_NO_MAGICLINKS)
	switch {
	case v.root == nil:
		text = "/" + text
	case v.virtual:
		dir, resolve = int(v.root.Fd()), resolve|unix.RESOLVE_IN_ROOT
	default:
		dir, resolve = int(v.root.Fd()), resolve|unix.RESOLVE_BENEATH
	}
	if text == "" {
		text = "."
	}
	fd, err := openat2(dir, text, flags, resolve)
	if errors.Is(err, errUseWalk) {
		return v.openWalk(parts, flags)
	}
	return fd, err
}

func join(parts []string) string {
	n := 0
	for _, c := range parts {
		n += len(c) + 1
	}
	out := make([]byte, 0, n)
	for i, c := range parts {
		if i > 0 {
			out = append(out, '/')
		}
		out = append(out, c...)
	}
	return string(out)
}

// Check checks a resolved path, as Resolved and Location return it, below a directory that
// the view opened.
func (v *View) Check(real string, access Access) error {
	for i := range v.rules {
		if err := v.rules[i].check(access, real); err != nil {
			return err
		}
	}
	return nil
}

// CheckTree checks that a directory may be read, written and moved with everything below
// it.
func (v *View) CheckTree(real string) error {
	for i := range v.rules {
		if err := v.rules[i].checkTree(real); err != nil {
			return err
		}
	}
	return nil
}

// Checks reports whether Check can deny anything.
func (v *View) Checks() bool { return len(v.rules) > 0 }

// Resolved returns the resolved path of an open file in the sandbox, not in a virtual root.
func (v *View) Resolved(f *os.File) (string, error) { return resolved(int(f.Fd())) }

func (v *View) checkFD(fd int, access Access) error {
	if !v.Checks() {
		return nil
	}
	real, err := resolved(fd)
	if err != nil {
		return err
	}
	return v.Check(real, access)
}

func (v *View) checkName(dir int, name string, access Access) error {
	if !v.Checks() {
		return nil
	}
	real, err := realName(dir, name)
	if err != nil {
		return err
	}
	return v.Check(real, access)
}

func realName(dir int, name string) (string, error) {
	real, err := resolved(dir)
	if err != nil || name == "." {
		return real, err
	}
	return Join(real, name), nil
}
