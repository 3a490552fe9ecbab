package files

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/files/paths"
	"github.com/sandgate/sandgate/agent/files/walk"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// maxEntries is the maximum of a page of ListDirectory and of glob results.
const maxEntries = 10_000

// ListDirectory returns a page of a directory, sorted by the bytes of names. A page token
// contains the last name, so changes between pages shift nothing. Entries that a policy
// forbids to read are skipped.
func (s *Service) ListDirectory(ctx context.Context, r *sandboxv1.ListDirectoryRequest) (*sandboxv1.ListDirectoryResponse, error) {
	ctx, c, err := s.open(ctx, s.work)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	path := r.GetPath()
	size := int(r.GetPageSize())
	switch {
	case size < 0:
		return nil, requestFault("page_size", "negative")
	case size == 0 || size > maxEntries:
		size = maxEntries
	}
	after, err := parseToken(path, r.GetPageToken())
	if err != nil {
		return nil, err
	}
	dir, err := openDirectory(c.view, path)
	if err != nil {
		return nil, asFault(path, err)
	}
	defer func() { _ = dir.Close() }()

	l := lister{view: c.view, dir: dir, path: path, after: after, size: size}
	if err := l.read(ctx); err != nil {
		return nil, asFault(path, err)
	}
	return l.describe(), nil
}

// openDirectory opens a directory, or a link to one, for listing.
func openDirectory(v *paths.View, path string) (*os.File, error) {
	dir, err := v.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, paths.Read)
	if err != nil {
		if errors.Is(err, unix.ENXIO) { // a socket
			return nil, pathFault(notDirectory, path, "not a directory")
		}
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		_ = dir.Close()
		return nil, pathFault(notDirectory, path, "not a directory")
	}
	return dir, nil
}

type lister struct {
	view  *paths.View
	dir   *os.File
	path  string
	after string
	size  int
	found []walk.Entry // after read: the first size+1 after the token
}

// read holds at most two pages at a time, however large the directory is.
func (l *lister) read(ctx context.Context) error {
	list := walk.NewReader(int(l.dir.Fd()))
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		entries, err := list.Next()
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Name > l.after {
				l.found = append(l.found, e)
			}
		}
		if len(l.found) > 2*(l.size+1) || len(entries) == 0 {
			slices.SortFunc(l.found, func(a, b walk.Entry) int { return strings.Compare(a.Name, b.Name) })
			l.found = l.found[:min(len(l.found), l.size+1)]
		}
		if len(entries) == 0 {
			return nil
		}
	}
}

func (l *lister) describe() *sandboxv1.ListDirectoryResponse {
	resp := &sandboxv1.ListDirectoryResponse{}
	real := ""
	if l.view.Checks() {
		real, _ = l.view.Resolved(l.dir) // it was resolved in openDirectory
	}
	bytes := 0
	for i, e := range l.found {
		if i == l.size || bytes > maxReply {
			resp.NextPageToken = makeToken(l.path, l.found[i-1].Name)
			break
		}
		if l.view.Checks() && l.view.Check(paths.Join(real, e.Name), paths.Read) != nil {
			continue
		}
		if info := l.entry(e); info != nil {
			resp.Entries = append(resp.Entries, info)
			bytes += proto.Size(info) + 8
		}
	}
	return resp
}

// entry returns nil for an entry that was removed meanwhile. In a directory that is
// readable but not searchable, only the type is known.
func (l *lister) entry(e walk.Entry) *sandboxv1.FileInfo {
	path, fd := paths.Join(l.path, e.Name), int(l.dir.Fd())
	var st unix.Stat_t
	err := unix.Fstatat(fd, e.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &sandboxv1.FileInfo{Path: wirePath(path), Type: fileType(e.Mode)}
	}
	info := fileInfo(path, &st)
	if info.GetType() == typeSymlink {
		linkInfo(l.view, info, fd, e.Name, path)
	}
	return info
}

// A token is a check that ties it to its directory, and the page's last name.
const tokenCheck = 4

func makeToken(path, last string) string {
	sum := sha256.Sum256([]byte(path))
	return base64.RawURLEncoding.EncodeToString(append(sum[:tokenCheck], last...))
}

func parseToken(path, token string) (string, error) {
	if token == "" {
		return "", nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	sum := sha256.Sum256([]byte(path))
	if err != nil || len(raw) <= tokenCheck || string(raw[:tokenCheck]) != string(sum[:tokenCheck]) {
		return "", fault.New(codes.InvalidArgument, tokenInvalid, "the page token is not one of this directory", nil)
	}
	return string(raw[tokenCheck:]), nil
}
