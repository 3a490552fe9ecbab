package paths

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	// ErrInvalid is wrapped by errors about the text of a path.
	ErrInvalid = errors.New("invalid path")
	// ErrOutside is returned for a path that leads out of a root directory.
	ErrOutside = errors.New("path leads out of the root directory")
)

// split checks the text of a path and returns its components. Repeated and
// trailing slashes and "." are accepted and left out; ".." is kept.
func split(p string) ([]string, error) {
	switch {
	case p == "":
		return nil, fmt.Errorf("%w: empty", ErrInvalid)
	case p[0] != '/':
		return nil, fmt.Errorf("%w: not absolute", ErrInvalid)
	case strings.IndexByte(p, 0) >= 0:
		return nil, fmt.Errorf("%w: holds NUL", ErrInvalid)
	case len(p) >= unix.PathMax:
		return nil, fmt.Errorf("%w: longer than %d bytes", ErrInvalid, unix.PathMax-1)
	}
	return components(p), nil
}

func components(p string) []string {
	var out []string
	for part := range strings.SplitSeq(p, "/") {
		if part != "" && part != "." {
			out = append(out, part)
		}
	}
	return out
}

// targetComponents splits the target of a link. It keeps a final ".", which requires a
// directory.
func targetComponents(target string) []string {
	out := components(target)
	if strings.HasSuffix(target, "/") || target == "." || strings.HasSuffix(target, "/.") {
		out = append(out, ".")
	}
	return out
}

// prefix checks and cleans a prefix or root of a policy.
func prefix(p string) (string, error) {
	if _, err := split(p); err != nil {
		return "", fmt.Errorf("policy prefix %q: %w", p, err)
	}
	return path.Clean(p), nil
}

// Beneath reports whether the clean path p is prefix or lies below it.
func Beneath(p, prefix string) bool {
	if prefix == "/" {
		return strings.HasPrefix(p, "/")
	}
	rest, ok := strings.CutPrefix(p, prefix)
	return ok && (rest == "" || rest[0] == '/')
}

// Join appends a name to a directory's path as it was given, without doubling
// its last slash.
func Join(dir, name string) string {
	return strings.TrimRight(dir, "/") + "/" + name
}

// relative returns the components of p below root, both absolute.
func relative(p, root []string) ([]string, bool) {
	if len(p) < len(root) {
		return nil, false
	}
	for i := range root {
		if p[i] != root[i] {
			return nil, false
		}
	}
	return p[len(root):], true
}
