package files

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/glob"
	"github.com/sandgate/sandgate/agent/files/paths"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const (
	maxMatches = 10_000
	maxContext = 20
)

// SearchFiles finds lines. One goroutine walks the tree in the order of the
// reply, others search files ahead, and the results are put together in that
// order, so the same tree gives the same reply however it was scheduled.
func (s *Service) SearchFiles(ctx context.Context, req *agentv1.SearchFilesRequest) (*agentv1.SearchFilesResponse, error) {
	defer s.begin()()
	r := req.GetRequest()
	q, err := newQuery(r)
	if err != nil {
		return nil, err
	}
	if q.view, err = s.view(req.GetConfinement()); err != nil {
		return nil, err
	}
	defer func() { _ = q.view.Close() }()
	limited, cancel := context.WithTimeoutCause(ctx, s.cfg.SearchTime, errBudget)
	defer cancel()
	leave, err := s.search.enter(limited)
	switch {
	case errors.Is(err, errBudget):
		reply := &searchReply{}
		reply.cut(cutTime)
		return &agentv1.SearchFilesResponse{Response: reply.response()}, nil
	case err != nil:
		return nil, asFault(r.GetPath(), err)
	}
	defer leave()
	q.memory = s.search
	resp, err := q.run(limited)
	if err != nil {
		return nil, asFault(r.GetPath(), err)
	}
	return &agentv1.SearchFilesResponse{Response: resp}, nil
}

// query is what one search looks for and where.
type query struct {
	request *sandboxv1.SearchFilesRequest
	view    *paths.View
	matcher *matcher
	pattern *glob.Pattern
	max     int
	memory  *searchMemory
}

func newQuery(r *sandboxv1.SearchFilesRequest) (*query, error) {
	q := &query{request: r, max: maxMatches}
	for _, f := range []struct {
		field   string
		n, most int64
	}{
		{"max_matches", int64(r.GetMaxMatches()), 1 << 31},
		{"max_file_bytes", r.GetMaxFileBytes(), 1<<63 - 1},
		{"context_before", int64(r.GetContextBefore()), maxContext},
		{"context_after", int64(r.GetContextAfter()), maxContext},
	} {
		if f.n < 0 || f.n > f.most {
			return nil, requestFault(f.field, fmt.Sprintf("not in 0 to %d", f.most))
		}
	}
	if n := int(r.GetMaxMatches()); n > 0 && n < maxMatches {
		q.max = n
	}
	if r.GetPattern() == "" {
		return nil, requestFault("pattern", "empty")
	}
	var err error
	if q.matcher, err = newMatcher(r.GetPattern(), r.GetSyntax(), r.GetIgnoreCase()); err != nil {
		return nil, patternFault("pattern", err)
	}
	if r.GetGlob() != "" {
		if q.pattern, err = glob.Compile(r.GetGlob(), false); err != nil {
			return nil, patternFault("glob", err)
		}
	}
	return q, nil
}

// run searches a directory, or one file.
func (q *query) run(ctx context.Context) (*sandboxv1.SearchFilesResponse, error) {
	where := q.request.GetPath()
	root, err := q.view.Open(where, unix.O_RDONLY|unix.O_NONBLOCK, paths.Read)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return nil, err
	}
	reply := &searchReply{max: q.max}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return q.tree(ctx, root, reply)
	case unix.S_IFREG:
	default:
		return nil, unix.ENXIO
	}
	if q.pattern != nil && !q.pattern.Match(path.Base(where)) {
		return reply.response(), nil
	}
	job := &job{query: q, first: true}
	defer q.memory.free(job)
	sc := newScanner(q)
	job.file(ctx, sc, int(root.Fd()), &st, where)
	if err := context.Cause(ctx); err != nil && !errors.Is(err, errBudget) {
		return nil, err
	} else if err != nil {
		reply.cut(cutTime)
	}
	reply.add(job)
	return reply.response(), nil
}

// workers is how many files one search reads at a time.
func workers() int { return min(runtime.GOMAXPROCS(0), maxSearchers) }
