package files

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/glob"
	"github.com/sandgate/sandgate/agent/files/paths"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Short names for why a result is not whole.
const (
	cutCount      = sandboxv1.TruncationReason_TRUNCATION_REASON_COUNT
	cutTime       = sandboxv1.TruncationReason_TRUNCATION_REASON_TIME
	cutUnreadable = sandboxv1.TruncationReason_TRUNCATION_REASON_UNREADABLE
)

var (
	// errBudget is the cause of a context whose time for a walk ended.
	errBudget = errors.New("the time for the walk ended")
	// errEnough ends a walk early.
	errEnough = errors.New("enough was found")
)

// pseudo are directories of "/" that a walk leaves out: they never end and hold
// no files of a user.
var pseudo = []string{"dev", "proc", "sys"}

// folder is an open directory of a walk.
type folder struct {
	fd   int
	rel  string // path below the root of the walk; empty, or with "/" at its end
	real string // resolved path, where the view checks anything
	// owned says that the visitor closes the descriptor, some time after leave.
	owned bool
}

// visitor is told what a walk finds, by path in byte order.
type visitor interface {
	// visit is called for every name that the pattern matches. An error ends
	// the walk.
	visit(in *folder, e dirEntry) error
	// enter is called before the names of a directory are visited, leave
	// afterwards.
	enter(in *folder)
	leave(in *folder)
}

// walker goes through a tree without following links. Every directory is opened
// beneath the one before it.
type walker struct {
	view       *paths.View
	pattern    *glob.Pattern // nil: every name matches
	skip       []string      // names of directories that are left out
	unreadable bool          // something could not be read
	visitor    visitor
}

// step is what is to be done with one name. The names of files and the insides
// of directories are sorted together, so that paths come in byte order.
type step struct {
	key   string // the name, with "/" at its end for the inside
	entry dirEntry
	state glob.State
}

func (w *walker) run(ctx context.Context, root *os.File) error {
	top := &folder{fd: int(root.Fd())}
	skip := w.skip
	if w.view.Checks() {
		var err error
		if top.real, err = w.view.Resolved(root); err != nil {
			return err
		}
	}
	if isRoot(root) {
		skip = append(slices.Clone(skip), pseudo...)
	}
	var state glob.State
	if w.pattern != nil {
		state = w.pattern.Start()
	}
	return w.folder(ctx, top, state, skip)
}

func isRoot(dir *os.File) bool {
	var here, root unix.Stat_t
	return unix.Fstat(int(dir.Fd()), &here) == nil && unix.Stat("/", &root) == nil &&
		here.Dev == root.Dev && here.Ino == root.Ino
}

func (w *walker) folder(ctx context.Context, in *folder, state glob.State, skip []string) error {
	steps, err := w.read(ctx, in, state, skip)
	if err != nil {
		return err
	}
	w.visitor.enter(in)
	defer w.visitor.leave(in)
	for i := range steps {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		s := &steps[i]
		if s.key == s.entry.name {
			err = w.visitor.visit(in, s.entry)
		} else {
			err = w.descend(ctx, in, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) descend(ctx context.Context, in *folder, s *step) error {
	rel := in.rel + s.key
	if len(rel) >= unix.PathMax {
		w.unreadable = true // nothing in it could be named in a request
		return nil
	}
	fd, err := unix.Openat(in.fd, s.entry.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil // it is gone, or something else took its place
	case err != nil:
		w.unreadable = true
		return nil
	}
	sub := &folder{fd: fd, rel: rel}
	if w.view.Checks() {
		sub.real = paths.Join(in.real, s.entry.name)
	}
	defer func() {
		if !sub.owned {
			_ = unix.Close(sub.fd)
		}
	}()
	return w.folder(ctx, sub, s.state, w.skip)
}

// read lists what matters of a directory, sorted.
func (w *walker) read(ctx context.Context, in *folder, state glob.State, skip []string) ([]step, error) {
	var steps []step
	list := newDirReader(in.fd)
	for {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		entries, err := list.next()
		if err != nil {
			w.unreadable = true
			break
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			if e.isDir() && slices.Contains(skip, e.name) {
				continue
			}
			match, below := true, glob.State{}
			if w.pattern != nil {
				match, below = w.pattern.Step(state, e.name, e.isDir())
			}
			inside := e.isDir() && (w.pattern == nil || !below.Dead())
			if !match && !inside {
				continue
			}
			if w.view.Checks() && w.view.Check(paths.Join(in.real, e.name), paths.Read) != nil {
				continue
			}
			if match {
				steps = append(steps, step{key: e.name, entry: e})
			}
			if inside {
				steps = append(steps, step{key: e.name + "/", entry: e, state: below})
			}
		}
	}
	slices.SortFunc(steps, func(a, b step) int { return strings.Compare(a.key, b.key) })
	return steps, nil
}
