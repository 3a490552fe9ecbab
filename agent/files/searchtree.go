package files

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/files/paths"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// jobFiles is how many neighbouring files are handed over at once.
const jobFiles = 32

// sharedDir is a directory's descriptor that the walk and the searches of its
// files use. The last of them closes it.
type sharedDir struct {
	fd   int
	refs atomic.Int32
}

func (d *sharedDir) release() {
	if d.refs.Add(-1) == 0 {
		_ = unix.Close(d.fd)
	}
}

// job is a run of neighbouring files, and then what was found in them.
type job struct {
	query *query
	dir   *sharedDir
	rel   string
	names []string
	done  chan struct{}

	matches    []*sandboxv1.SearchMatch
	bytes      int
	searched   int64
	more       bool // there are matches beyond those
	unreadable bool
	first      bool  // next in the order of the reply; under searchMemory.mu
	failed     error // it panicked
}

// planner is the walk's visitor: it makes jobs.
type planner struct {
	ended   <-chan struct{}
	query   *query
	ordered chan<- *job // as the reply lists them
	work    chan<- *job
	open    *job
	dirs    []*sharedDir
}

func (p *planner) enter(in *folder) {
	p.flush()
	d := &sharedDir{fd: in.fd}
	if in.rel == "" {
		// The root stays its owner's; the jobs get one of their own.
		fd, err := unix.Openat(in.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			fd = -1
		}
		d.fd = fd
	} else {
		in.owned = true
	}
	d.refs.Store(1)
	p.dirs = append(p.dirs, d)
}

func (p *planner) leave(*folder) {
	p.flush()
	last := len(p.dirs) - 1
	p.dirs[last].release()
	p.dirs = p.dirs[:last]
}

func (p *planner) visit(in *folder, e dirEntry) error {
	if e.mode != unix.S_IFREG {
		return nil
	}
	// A directory in between has its files in other jobs.
	if p.open != nil && (p.open.rel != in.rel || len(p.open.names) == jobFiles) {
		p.flush()
	}
	if p.open == nil {
		d := p.dirs[len(p.dirs)-1]
		d.refs.Add(1)
		p.open = &job{query: p.query, dir: d, rel: in.rel, done: make(chan struct{})}
	}
	p.open.names = append(p.open.names, e.name)
	return nil
}

// flush hands the open job over.
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
func (q *query) tree(ctx context.Context, root *os.File, reply *searchReply) (*sandboxv1.SearchFilesResponse, error) {
	inner, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	n := workers()
	ahead := 4 * n
	ordered, work := make(chan *job, ahead), make(chan *job, ahead+2)
	walk := &walker{view: q.view, pattern: q.pattern, skip: q.request.GetExcludeDirs(), visitor: &planner{
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
		walked = fault.Catch(func() error { return walk.run(inner, root) })
	})
	defer context.AfterFunc(inner, q.memory.wake)()
	var failed error
	for j := range ordered {
		q.memory.lead(j)
		<-j.done
		switch {
		case j.failed != nil:
			failed = j.failed
			stop(failed)
		case !reply.full:
			reply.add(j)
		}
		if reply.full {
			stop(errEnough)
		}
		q.memory.free(j)
	}
	running.Wait()
	if failed != nil {
		return nil, failed
	}
	switch {
	case walked == nil, errors.Is(walked, errEnough):
	case errors.Is(walked, errBudget):
		reply.cut(cutTime)
	default:
		return nil, walked
	}
	if err := context.Cause(ctx); errors.Is(err, errBudget) {
		reply.cut(cutTime) // it ended after the walk, in the last files
	} else if err != nil {
		return nil, err
	}
	if walk.unreadable {
		reply.cut(cutUnreadable)
	}
	return reply.response(), nil
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
			continue // it is gone, or something else took its place
		case err != nil:
			j.unreadable = true
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			j.file(ctx, sc, fd, &st, paths.Join(j.query.request.GetPath(), j.rel+name))
		}
		_ = unix.Close(fd)
	}
}

// file searches one file.
func (j *job) file(ctx context.Context, sc *scanner, fd int, st *unix.Stat_t, path string) {
	if most := j.query.request.GetMaxFileBytes(); most > 0 && st.Size > most {
		return
	}
	looked, err := sc.scan(ctx, fd, func(h hit) bool {
		if len(j.matches) == j.query.max || j.bytes > maxReply {
			j.more = true
			return false
		}
		m := &sandboxv1.SearchMatch{Path: wirePath(path), Line: h.line, Text: clip(h.text)}
		sc.context(m, fd, h)
		if !j.query.memory.take(ctx, j, matchBytes(m)) {
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
