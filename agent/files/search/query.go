// Package search finds lines in files.
//
// One goroutine walks the tree in the order of the reply, others search files ahead.
// The results are joined in that order, so that the reply for a tree does not depend on
// scheduling.
package search

import (
	"context"
	"errors"
	"path"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/glob"
	"github.com/sandgate/sandgate/agent/files/paths"
	"github.com/sandgate/sandgate/agent/files/walk"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Query is one search.
type Query struct {
	Request *sandboxv1.SearchFilesRequest
	View    *paths.View
	Matcher *Matcher
	Pattern *glob.Pattern // of file names; nil: all
	Max     int           // matches
	Memory  *Memory
}

// Truncated returns an empty reply for a search whose time ended before it ran.
func Truncated() *sandboxv1.SearchFilesResponse {
	r := &reply{}
	r.cut(cutTime)
	return r.response()
}

// Run searches a directory or one file. The caller must have acquired Memory.
func (q *Query) Run(ctx context.Context) (*sandboxv1.SearchFilesResponse, error) {
	where := q.Request.GetPath()
	root, err := q.View.Open(where, unix.O_RDONLY|unix.O_NONBLOCK, paths.Read)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return nil, err
	}
	r := &reply{max: q.Max}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return q.tree(ctx, root, r)
	case unix.S_IFREG:
	default:
		return nil, unix.ENXIO
	}
	if q.Pattern != nil && !q.Pattern.Match(path.Base(where)) {
		return r.response(), nil
	}
	job := &job{query: q, first: true}
	defer q.Memory.free(job)
	sc := newScanner(q)
	job.file(ctx, sc, int(root.Fd()), &st, where)
	if err := context.Cause(ctx); err != nil && !errors.Is(err, walk.ErrTime) {
		return nil, err
	} else if err != nil {
		r.cut(cutTime)
	}
	r.add(job)
	return r.response(), nil
}

// workers is how many files one search reads at a time.
func workers() int { return min(runtime.GOMAXPROCS(0), maxSearchers) }
