package files

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandgate/sandgate/agent/files/glob"
	"github.com/sandgate/sandgate/agent/files/search"
	"github.com/sandgate/sandgate/agent/files/walk"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const (
	maxMatches = 10_000
	maxContext = 20
)

// SearchFiles finds lines.
func (s *Service) SearchFiles(ctx context.Context, r *sandboxv1.SearchFilesRequest) (*sandboxv1.SearchFilesResponse, error) {
	defer s.begin(ctx)()
	q, err := s.newQuery(r)
	if err != nil {
		return nil, err
	}
	if q.View, _, err = s.view(ctx); err != nil {
		return nil, err
	}
	defer func() { _ = q.View.Close() }()
	limited, cancel := context.WithTimeoutCause(ctx, s.cfg.SearchTime, walk.ErrTime)
	defer cancel()
	release, err := s.search.Acquire(limited)
	switch {
	case errors.Is(err, walk.ErrTime):
		return search.Truncated(), nil
	case err != nil:
		return nil, asFault(r.GetPath(), err)
	}
	defer release()
	resp, err := q.Run(limited)
	if err != nil {
		return nil, asFault(r.GetPath(), err)
	}
	return resp, nil
}

func (s *Service) newQuery(r *sandboxv1.SearchFilesRequest) (*search.Query, error) {
	q := &search.Query{Request: r, Max: maxMatches, Memory: s.search}
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
		q.Max = n
	}
	if r.GetPattern() == "" {
		return nil, requestFault("pattern", "empty")
	}
	var err error
	if q.Matcher, err = search.NewMatcher(r.GetPattern(), r.GetSyntax(), r.GetIgnoreCase()); err != nil {
		return nil, patternFault("pattern", err)
	}
	if r.GetGlob() != "" {
		if q.Pattern, err = glob.Compile(r.GetGlob(), false); err != nil {
			return nil, patternFault("glob", err)
		}
	}
	return q, nil
}
