package directory

import (
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
)

// Layout is a state directory and names what every provider has in it.
type Layout string

// Path returns a path below the state directory.
func (l Layout) Path(elem ...string) string {
	return filepath.Join(append([]string{string(l)}, elem...)...)
}

// Locks is the directory of lock files.
func (l Layout) Locks() string { return l.Path("locks") }

// Sandboxes is the directory of claimed sandboxes.
func (l Layout) Sandboxes() string { return l.Path("sandboxes") }

// Sandbox is the directory of a sandbox.
func (l Layout) Sandbox(name string) Dir { return Dir(l.Path("sandboxes", name)) }

// Pool is the directory of unclaimed sandboxes.
func (l Layout) Pool() string { return l.Path("pool") }

// Pooled is the directory of a pool member.
func (l Layout) Pooled(id string) Dir { return Dir(l.Path("pool", id)) }

// Make creates the state directory, these directories and others, which only the
// server's user may enter: they hold secrets of sandboxes.
func (l Layout) Make(others ...string) error {
	for _, dir := range append(others, string(l), l.Locks(), l.Sandboxes(), l.Pool()) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return os.Chmod(string(l), 0o700)
}

// All yields the directories of all sandboxes. It lists the pool first, and the
// sandboxes only when the loop has done with the pool: claims move directories from
// there to the sandboxes, so that none is missed.
func (l Layout) All() iter.Seq2[Dir, error] {
	return func(yield func(Dir, error) bool) {
		for _, dir := range []string{l.Pool(), l.Sandboxes()} {
			names, err := namesIn(dir)
			if err != nil && !yield("", err) {
				return
			}
			for _, name := range names {
				if !yield(Dir(filepath.Join(dir, name)), nil) {
					return
				}
			}
		}
	}
}

// Names returns the names of all claimed sandboxes, in order.
func (l Layout) Names() ([]string, error) { return namesIn(l.Sandboxes()) }

func namesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = e.Name()
	}
	return out, nil
}

// Dir is the directory of one sandbox.
type Dir string

// Name is the sandbox's name, or the id of a pool member.
func (d Dir) Name() string { return filepath.Base(string(d)) }

// Path returns a path in the directory.
func (d Dir) Path(elem string) string { return filepath.Join(string(d), elem) }

// Record is the path of the sandbox's record.
func (d Dir) Record() string { return d.Path("record.json") }

// Exists reports whether there may be such a sandbox.
func (d Dir) Exists() bool {
	_, err := os.Lstat(string(d))
	return !errors.Is(err, fs.ErrNotExist)
}
