package files

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/files/glob"
	"github.com/sandgate/sandgate/agent/files/paths"
	"github.com/sandgate/sandgate/agent/files/walk"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// GlobFiles lists files by name. It skips files that a policy forbids to read.
func (s *Service) GlobFiles(ctx context.Context, r *sandboxv1.GlobFilesRequest) (*sandboxv1.GlobFilesResponse, error) {
	ctx, c, err := s.open(ctx, s.walks)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	if r.GetMaxResults() < 0 {
		return nil, requestFault("max_results", "negative")
	}
	if r.GetPattern() == "" {
		return nil, requestFault("pattern", "empty")
	}
	pattern, err := glob.Compile(r.GetPattern(), r.GetBarePatternShallow())
	if err != nil {
		return nil, patternFault("pattern", err)
	}
	root, err := openDirectory(c.view, r.GetPath())
	if err != nil {
		return nil, asFault(r.GetPath(), err)
	}
	defer func() { _ = root.Close() }()

	g := &globber{view: c.view, request: r, max: maxEntries}
	if n := int(r.GetMaxResults()); n > 0 && n < maxEntries {
		g.max = n
	}
	if r.GetIncludeLinks() {
		g.real, err = c.view.Resolved(root)
		if err != nil {
			return nil, asFault(r.GetPath(), err)
		}
	}
	w := &walk.Walker{View: c.view, Pattern: pattern, Visitor: g}
	limited, cancel := context.WithTimeoutCause(ctx, s.cfg.GlobTime, walk.ErrTime)
	defer cancel()
	resp := &sandboxv1.GlobFilesResponse{}
	switch err := w.Run(limited, root); {
	case errors.Is(err, walk.ErrEnough):
		resp.TruncationReason = sandboxv1.TruncationReason_TRUNCATION_REASON_COUNT
	case errors.Is(err, walk.ErrTime):
		resp.TruncationReason = sandboxv1.TruncationReason_TRUNCATION_REASON_TIME
	case err != nil:
		return nil, asFault(r.GetPath(), err)
	}
	if w.Unreadable || g.unreadable {
		resp.TruncationReason = sandboxv1.TruncationReason_TRUNCATION_REASON_UNREADABLE
	}
	resp.Files, resp.Truncated = g.found, resp.GetTruncationReason() != 0
	return resp, nil
}

func patternFault(field string, err error) error {
	return fault.New(codes.InvalidArgument, patternInvalid, field+": "+err.Error(), nil).Field(field).Because(err)
}

type globber struct {
	view       *paths.View
	request    *sandboxv1.GlobFilesRequest
	real       string // resolved path of the root, for links
	max        int
	bytes      int
	found      []*sandboxv1.FileInfo
	unreadable bool
}

func (g *globber) Enter(*walk.Dir) {}
func (g *globber) Leave(*walk.Dir) {}

func (g *globber) Visit(in *walk.Dir, e walk.Entry) error {
	switch e.Mode {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		if !g.request.GetIncludeDirectories() {
			return nil
		}
	case unix.S_IFLNK:
		if !g.request.GetIncludeLinks() {
			return nil
		}
	default:
		return nil
	}
	path := paths.Join(g.request.GetPath(), in.Rel+e.Name)
	var st unix.Stat_t
	err := unix.Fstatat(in.FD, e.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		g.unreadable = true
		return nil
	}
	info := fileInfo(path, &st)
	if info.GetType() == typeSymlink && !g.link(info, in, e, path) {
		return nil
	}
	if len(g.found) == g.max || g.bytes > maxReply {
		return walk.ErrEnough
	}
	g.bytes += proto.Size(info) + 8
	g.found = append(g.found, info)
	return nil
}

// link reports whether a link leads to a file beneath the root of the walk.
func (g *globber) link(info *sandboxv1.FileInfo, in *walk.Dir, e walk.Entry, path string) bool {
	f, err := g.view.Open(path, unix.O_PATH, paths.Read)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	real, err := g.view.Resolved(f)
	if err != nil || !paths.Beneath(real, g.real) {
		return false
	}
	info.TargetType = typeRegular
	info.SymlinkTarget = readLink(in.FD, e.Name)
	return true
}

var _ walk.Visitor = (*globber)(nil)
