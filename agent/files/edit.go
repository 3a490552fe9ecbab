package files

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/files/paths"
	"github.com/sandgate/sandgate/agent/files/text"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// EditFile replaces text. It reads the file twice in blocks, to count and to write, so
// its memory does not depend on the file's size. Edits of one file are serialised.
func (s *Service) EditFile(ctx context.Context, r *sandboxv1.EditFileRequest) (*sandboxv1.EditFileResponse, error) {
	ctx, c, err := s.open(ctx, s.work)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	switch {
	case len(r.GetOldText()) == 0 && !r.GetAllowEmptyOld():
		return nil, requestFault("old_text", "empty")
	case !utf8.Valid(r.GetOldText()):
		return nil, requestFault("old_text", "not UTF-8")
	case !utf8.Valid(r.GetNewText()):
		return nil, requestFault("new_text", "not UTF-8")
	}
	resp, err := s.edit(ctx, c.view, r, c.limits.GetMaxFileBytes())
	if err != nil {
		return nil, asFault(r.GetPath(), err)
	}
	return resp, nil
}

func (s *Service) edit(ctx context.Context, v *paths.View, r *sandboxv1.EditFileRequest, limit int64) (*sandboxv1.EditFileResponse, error) {
	loc, err := v.Locate(r.GetPath(), paths.Lookup{Access: paths.Read | paths.Write, Follow: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = loc.Close() }()
	unlock, err := s.locks.lock(ctx, loc)
	if err != nil {
		return nil, err
	}
	defer unlock()
	t := &target{loc: loc, path: r.GetPath()}
	src, err := t.openOld()
	if err != nil {
		return nil, err
	}
	defer func() { _ = src.Close() }()
	t.edited = &src.stat // A command may move or remove it meanwhile.

	e := editor{path: r.GetPath(), src: src, size: src.stat.Size}
	if err := e.find(ctx, r); err != nil {
		return nil, err
	}
	size := e.size + e.count*int64(len(e.new)-len(e.old))
	if limit > 0 && size > limit {
		return nil, tooLargeFault(r.GetPath(), limit)
	}
	d, err := s.newDraft(loc.FD())
	if err != nil {
		return nil, err
	}
	if err = e.write(ctx, d, size); err == nil {
		_, err = s.landLocked(t, d)
	}
	if err != nil {
		_ = d.discard()
		return nil, err
	}
	return &sandboxv1.EditFileResponse{Occurrences: e.count, Size: size}, nil
}

// openOld opens the existing file, which must be regular, readable and writable.
func (t *target) openOld() (*source, error) {
	if err := t.inspect(); err != nil {
		return nil, err
	}
	if !t.exists {
		return nil, unix.ENOENT
	}
	fd, err := unix.Openat(t.loc.FD(), t.loc.Name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	src := &source{File: os.NewFile(uintptr(fd), t.path)}
	if err := unix.Fstat(fd, &src.stat); err != nil {
		_ = src.Close()
		return nil, err
	}
	return src, nil
}

// editor replaces old by new in src.
type editor struct {
	path     string
	src      *source
	size     int64
	old, new []byte
	count    int64
}

// find determines which spelling of the line ends occurs, and how often.
func (e *editor) find(ctx context.Context, r *sandboxv1.EditFileRequest) error {
	if len(r.GetOldText()) == 0 {
		if e.size != 0 {
			return requestFault("old_text", "empty, and the file is not")
		}
		e.new, e.count = r.GetNewText(), 1
		return nil
	}
	for i, c := range spellings(r.GetOldText(), r.GetNewText()) {
		rep := text.Replacer{Old: c.old, Check: i == 0}
		if err := rep.Run(ctx, e.src, e.size, nil); err != nil {
			return err
		}
		if rep.Check && !rep.Text.Valid() {
			return pathFault(notText, e.path, "not UTF-8 text")
		}
		if rep.Count > 0 {
			e.old, e.new, e.count = c.old, c.new, rep.Count
			break
		}
	}
	switch {
	case e.count == 0:
		return pathFault(textNotFound, e.path, "the text to replace does not occur")
	case e.count > 1 && !r.GetReplaceAll():
		return fault.New(codes.FailedPrecondition, notUnique,
			fmt.Sprintf("%q: the text to replace occurs %d times; give more of its surroundings, or set replace_all", e.path, e.count),
			map[string]string{"path": e.path, "occurrences": strconv.FormatInt(e.count, 10)})
	}
	return nil
}

// write puts the new content into d.
func (e *editor) write(ctx context.Context, d *draft, size int64) error {
	if len(e.old) == 0 {
		_, err := d.Write(e.new)
		return err
	}
	rep := text.Replacer{Old: e.old, New: e.new}
	if err := rep.Run(ctx, e.src, e.size, d); err != nil {
		return err
	}
	if rep.Count != e.count || rep.Written != size {
		return pathFault(fileIO, e.path, "the file was changed while it was edited")
	}
	return nil
}

type spelling struct{ old, new []byte }

// spellings returns the texts unchanged, with "\r\n" and with "\n".
func spellings(old, new []byte) []spelling {
	lf := func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")) }
	crlf := func(b []byte) []byte { return bytes.ReplaceAll(lf(b), []byte("\n"), []byte("\r\n")) }
	out := []spelling{{old, new}}
	if s := (spelling{crlf(old), crlf(new)}); !bytes.Equal(s.old, old) {
		out = append(out, s)
	}
	if s := (spelling{lf(old), lf(new)}); !bytes.Equal(s.old, old) {
		out = append(out, s)
	}
	return out
}
