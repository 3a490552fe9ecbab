package landlock

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// expand returns the paths to allow so that everything beneath allow may be written except
// beneath deny. If a denied directory is beneath an allowed one, expand returns the entries
// beside it instead. That denies new entries there, so it is done only if this user can't
// make any anyway and the entries can be listed. Otherwise the denied directory stays
// writable, and exact is false.
func expand(allow, deny []string) (list []string, exact bool) {
	exact = true
	for _, dir := range allow {
		more, ok := around(path.Clean(dir), deny)
		list, exact = append(list, more...), exact && ok
	}
	return list, exact
}

// Enforceable returns the directories that can be denied to commands which may write
// everything else.
func Enforceable(deny []string) []string {
	var list []string
	for _, dir := range deny {
		if !path.IsAbs(dir) {
			continue
		}
		if _, exact := expand([]string{"/"}, []string{path.Clean(dir)}); exact {
			list = append(list, path.Clean(dir))
		}
	}
	return list
}

// Tests replace these.
var (
	// writable reports whether this user may make entries in a directory.
	writable = func(dir string) bool {
		return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK, unix.AT_EACCESS) == nil
	}
	readDir = os.ReadDir
)

func around(dir string, deny []string) (list []string, exact bool) {
	within := false
	for _, d := range deny {
		if beneath(dir, d) {
			return nil, true
		}
		within = within || beneath(d, dir)
	}
	if !within {
		return []string{dir}, true
	}
	if writable(dir) {
		return []string{dir}, false
	}
	entries, err := readDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, true
	case err != nil:
		// A directory that can't be listed may still contain entries that commands can
		// write.
		return []string{dir}, false
	}
	exact = true
	for _, e := range entries {
		more, ok := around(path.Join(dir, e.Name()), deny)
		list, exact = append(list, more...), exact && ok
	}
	return list, exact
}

// beneath reports whether p is dir or beneath it. Both are clean.
func beneath(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}
