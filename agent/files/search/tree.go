package search

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/files/paths"
	"github.com/sandgate/sandgate/agent/files/walk"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// jobFiles is how many files one job has at most.
const jobFiles = 32

// sharedDir is a directory's descriptor that the walk and the jobs of its files share.
// The last one closes it.
type sharedDir struct {
	fd   int
	refs atomic.Int32
}

func (d *sharedDir) release() {
	if d.refs.Add(-1) == 0 {
		_ = unix.Close(d.fd)
	}
}

// job is a sequence of files of one directory, and the matches in them.
type job struct {
	query *Query
	dir   *sharedDir
	rel   string
	names []string
	done  chan struct{}

	matches    []*sandboxv1.SearchMatch
	bytes      int
	searched   int64
	more       bool // there are more matches
	unreadable bool
	first      bool  // next in the reply; requires Memory.mu
	failed     error // a panic
}

// planner is the walk's visitor: it makes jobs.
type planner struct {
	ended   <-chan struct{}
	query   *Query
	ordered chan<- *job // in the order of the reply
	work    chan<- *job
	open    *job
	dirs    []*sharedDir
}

func (p *planner) Enter(in *walk.Dir) {
	p.flush()
	d := &sharedDir{fd: in.FD}
	if in.Rel == "" {
		// The root belongs to the caller, so the jobs get a descriptor of their own.
		fd, err := unix.Openat(in.FD, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			fd = -1
		}
		d.fd = fd
	} else {
		in.Owned = true
	}
	d.refs.Store(1)
	p.dirs = append(p.dirs, d)
}

func (p *planner) Leave(*walk.Dir) {
	p.flush()
	last := len(p.dirs) - 1
	p.dirs[last].release()
	p.dirs = p.dirs[:last]
}

func (p *planner) Visit(in *walk.Dir, e walk.Entry) error {
	if e.Mode != unix.S_IFREG {
		return nil
	}
	// After a subdirectory, a new job begins.
	if p.open != nil && (p.open.rel != in.Rel || len(p.open.names) == jobFiles) {
		p.flush()
	}
	if p.open == nil {
		d := p.dirs[len(p.dirs)-1]
		d.refs.Add(1)
		p.open = &job{query: p.query, dir: d, rel: in.Rel, done: make(chan struct{})}
	}
	p.open.names = append(p.open.names, e.Name)
	return nil
}

// flush passes the open job on.
func (p *planner) flush() {
	j := p.open
	if j == nil {
		return
	}
	p.open = nil
	select {
	case p.ordered <- j:
	case <-p.ended:
		j.dir.release()
		return
	}
	p.work <- j // has room for all that ordered holds
}

// tree searches a directory.
func (q *Query) tree(ctx context.Context, root *os.File, r *reply) (*sandboxv1.SearchFilesResponse, error) {
	inner, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	n := workers()
	ahead := 4 * n
	ordered, work := make(chan *job, ahead), make(chan *job, ahead+2)
	walker := &walk.Walker{View: q.View, Pattern: q.Pattern, Skip: q.Request.GetExcludeDirs(), Visitor: &planner{
		ended: inner.Done(), query: q, ordered: ordered, work: work,
	}}
	var running sync.WaitGroup
	for range n {
		running.Go(func() {
			sc := newScanner(q)
			for j := range work {
				j.failed = fault.Catch(func() error {
					j.run(inner, sc)
					return nil
				})
				close(j.done)
				j.dir.release()
			}
		})
	}
	var walked error
	running.Go(func() {
		defer close(ordered)
		defer close(work)
		walked = fault.Catch(func() error { return walker.Run(inner, root) })
	})
	defer context.AfterFunc(inner, q.Memory.wake)()
	var failed error
	for j := range ordered {
		q.Memory.setFirst(j)
		<-j.done
		switch {
		case j.failed != nil:
			failed = j.failed
			stop(failed)
		case !r.full:
			r.add(j)
		}
		if r.full {
			stop(walk.ErrEnough)
		}
		q.Memory.free(j)
	}
	running.Wait()
	if failed != nil {
		return nil, failed
	}
	switch {
	case walked == nil, errors.Is(walked, walk.ErrEnough):
	case errors.Is(walked, walk.ErrTime):
		r.cut(cutTime)
	default:
		return nil, walked
	}
	if err := context.Cause(ctx); errors.Is(err, walk.ErrTime) {
		r.cut(cutTime) // time ended after the walk, in the last files
	} else if err != nil {
		return nil, err
	}
	if walker.Unreadable {
		r.cut(cutUnreadable)
	}
	return r.response(), nil
}

// run searches the job's files.
func (j *job) run(ctx context.Context, sc *scanner) {
	for _, name := range j.names {
		if ctx.Err() != nil || j.more {
			return
		}
		fd, err := unix.Openat(j.dir.fd, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
			continue // it was removed or replaced
		case err != nil:
			j.unreadable = true
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			j.file(ctx, sc, fd, &st, paths.Join(j.query.Request.GetPath(), j.rel+name))
		}
		_ = unix.Close(fd)
	}
}

// file searches one file.
func (j *job) file(ctx context.Context, sc *scanner, fd int, st *unix.Stat_t, path string) {
	if most := j.query.Request.GetMaxFileBytes(); most > 0 && st.Size > most {
		return
	}
	looked, err := sc.scan(ctx, fd, func(h hit) bool {
		if len(j.matches) == j.query.Max || j.bytes > maxReply {
			j.more = true
			return false
		}
		m := &sandboxv1.SearchMatch{Path: strings.ToValidUTF8(path, "\uFFFD"), Line: h.line, Text: clip(h.text)}
		sc.context(m, fd, h)
		if !j.query.Memory.reserve(ctx, j, matchBytes(m)) {
			return false
		}
		j.matches = append(j.matches, m)
		return true
	})
	if err != nil {
		j.unreadable = true
	}
	if looked {
		j.searched++
	}
}
