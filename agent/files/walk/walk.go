// Package walk walks directory trees beneath a view, in a fixed order.
package walk

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/glob"
	"github.com/sandgate/sandgate/agent/files/paths"
)

var (
	// ErrTime is the cause of a context whose time for a walk has ended.
	ErrTime = errors.New("the time for the walk ended")
	// ErrEnough is returned by a visitor that wants no more.
	ErrEnough = errors.New("enough was found")
)

// pseudo are directories of "/" that a walk skips: they are endless and hold no files
// of users.
var pseudo = []string{"dev", "proc", "sys"}

// Dir is an open directory of a walk.
type Dir struct {
	FD   int
	Rel  string // path below the root of the walk: empty, or with a final "/"
	real string // resolved path, if the view checks paths
	// Owned is set by a visitor that closes FD itself, at any time after Leave.
	Owned bool
}

// Visitor receives the results of a walk, sorted by the bytes of their paths.
type Visitor interface {
	// Visit is called for every entry that the pattern matches. An error ends the
	// walk.
	Visit(in *Dir, e Entry) error
	// Enter is called before the entries of a directory are visited, Leave
	// afterwards.
	Enter(in *Dir)
	Leave(in *Dir)
}

// Walker walks a tree without following links. It opens every directory relative to
// its parent.
type Walker struct {
	View       *paths.View
	Pattern    *glob.Pattern // nil: every name matches
	Skip       []string      // names of directories to skip
	Visitor    Visitor
	Unreadable bool // some directory could not be read
}

// step is one step of a walk: an entry, or the inside of a directory. Both are sorted
// together, so that paths are sorted by their bytes.
type step struct {
	key   string // the name, with "/" at its end for the inside
	entry Entry
	state glob.State
}

// Run walks the directory root.
func (w *Walker) Run(ctx context.Context, root *os.File) error {
	top := &Dir{FD: int(root.Fd())}
	skip := w.Skip
	if w.View.Checks() {
		var err error
		if top.real, err = w.View.Resolved(root); err != nil {
			return err
		}
	}
	if isRoot(root) {
		skip = append(slices.Clone(skip), pseudo...)
	}
	var state glob.State
	if w.Pattern != nil {
		state = w.Pattern.Start()
	}
	return w.dir(ctx, top, state, skip)
}

func isRoot(dir *os.File) bool {
	var here, root unix.Stat_t
	return unix.Fstat(int(dir.Fd()), &here) == nil && unix.Stat("/", &root) == nil &&
		here.Dev == root.Dev && here.Ino == root.Ino
}

func (w *Walker) dir(ctx context.Context, in *Dir, state glob.State, skip []string) error {
	steps, err := w.read(ctx, in, state, skip)
	if err != nil {
		return err
	}
	w.Visitor.Enter(in)
	defer w.Visitor.Leave(in)
	for i := range steps {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		s := &steps[i]
		if s.key == s.entry.Name {
			err = w.Visitor.Visit(in, s.entry)
		} else {
			err = w.descend(ctx, in, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *Walker) descend(ctx context.Context, in *Dir, s *step) error {
	rel := in.Rel + s.key
	if len(rel) >= unix.PathMax {
		w.Unreadable = true // no path in it is short enough for a request
		return nil
	}
	fd, err := unix.Openat(in.FD, s.entry.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil // it was removed or replaced
	case err != nil:
		w.Unreadable = true
		return nil
	}
	sub := &Dir{FD: fd, Rel: rel}
	if w.View.Checks() {
		sub.real = paths.Join(in.real, s.entry.Name)
	}
	defer func() {
		if !sub.Owned {
			_ = unix.Close(sub.FD)
		}
	}()
	return w.dir(ctx, sub, s.state, w.Skip)
}

// read returns the steps of a directory, sorted.
func (w *Walker) read(ctx context.Context, in *Dir, state glob.State, skip []string) ([]step, error) {
	var steps []step
	list := NewReader(in.FD)
	for {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		entries, err := list.Next()
		if err != nil {
			w.Unreadable = true
			break
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			if e.IsDir() && slices.Contains(skip, e.Name) {
				continue
			}
			match, below := true, glob.State{}
			if w.Pattern != nil {
				match, below = w.Pattern.Step(state, e.Name, e.IsDir())
			}
			inside := e.IsDir() && (w.Pattern == nil || !below.Dead())
			if !match && !inside {
				continue
			}
			if w.View.Checks() && w.View.Check(paths.Join(in.real, e.Name), paths.Read) != nil {
				continue
			}
			if match {
				steps = append(steps, step{key: e.Name, entry: e})
			}
			if inside {
				steps = append(steps, step{key: e.Name + "/", entry: e, state: below})
			}
		}
	}
	slices.SortFunc(steps, func(a, b step) int { return strings.Compare(a.key, b.key) })
	return steps, nil
}
