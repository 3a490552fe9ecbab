package landlock

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// expand returns what has to be allowed so that everything beneath allow may be
// written and nothing beneath deny: where a denied directory lies beneath an
// allowed one, the entries beside it are allowed instead. That would take away
// the right to make new entries there, so it is done only where this user has no
// such right anyway, and where the entries can be listed. Elsewhere the denied
// directory stays writable, and exact is false.
func expand(allow, deny []string) (list []string, exact bool) {
	exact = true
	for _, dir := range allow {
		more, ok := around(path.Clean(dir), deny)
		list, exact = append(list, more...), exact && ok
	}
	return list, exact
}

// Enforceable returns those of the directories that can be denied to commands
// which may write all else.
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
		// What cannot be listed, such as a directory with search permission only,
		// may still hold entries that commands write to.
		return []string{dir}, false
	}
	exact = true
	for _, e := range entries {
		more, ok := around(path.Join(dir, e.Name()), deny)
		list, exact = append(list, more...), exact && ok
	}
	return list, exact
}

// beneath reports whether p is dir or lies in it. Both are clean.
func beneath(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}
