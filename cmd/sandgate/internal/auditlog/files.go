package auditlog

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// pollInterval is how often a followed file is looked at, and maxLine bounds a line
// of it, in bytes. A record is far shorter.
const (
	pollInterval = 200 * time.Millisecond
	maxLine      = 1 << 20
)

// rotatedFiles returns an audit file and its rotated ones, oldest first: those of the
// server (audit-TIME.log) and of logrotate (audit.log.N, audit.log-DATE), also with
// ".gz".
func rotatedFiles(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	type file struct {
		path     string
		modified time.Time
	}
	var files []file
	name := filepath.Base(path)
	ext := filepath.Ext(name)
	for _, e := range entries {
		base := strings.TrimSuffix(e.Name(), ".gz")
		own := strings.HasPrefix(base, strings.TrimSuffix(name, ext)+"-") && strings.HasSuffix(base, ext)
		rotated := own || strings.HasPrefix(base, name+".") || strings.HasPrefix(base, name+"-")
		if !rotated || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files = append(files, file{filepath.Join(filepath.Dir(path), e.Name()), info.ModTime()})
	}
	slices.SortFunc(files, func(a, b file) int {
		return cmp.Or(a.modified.Compare(b.modified), strings.Compare(a.path, b.path))
	})
	plain := make(map[string]bool, len(files))
	for _, f := range files {
		plain[f.path] = true
	}
	var paths []string
	for _, f := range files {
		// Beside its source, a compressed file is still being written.
		if source, ok := strings.CutSuffix(f.path, ".gz"); !ok || !plain[source] {
			paths = append(paths, f.path)
		}
	}
	return append(paths, path), nil
}

// readLines calls line for each line of r. It leaves out those that are too long,
// and returns an incomplete last line.
func readLines(r *bufio.Reader, rest []byte, line func([]byte) error) ([]byte, error) {
	tooLong := false
	for {
		part, err := r.ReadSlice('\n')
		if !tooLong {
			rest = append(rest, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			tooLong = tooLong || len(rest) > maxLine
		case errors.Is(err, io.EOF):
			return rest, nil
		case err != nil:
			return rest, err
		default:
			if err := line(rest); err != nil {
				return nil, err
			}
			rest, tooLong = rest[:0], false
		}
	}
}

// readFile calls line for each line of a file. A file that has been removed has none.
func readFile(path string, line func([]byte) error) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return err
		}
	}
	return readAll(r, line)
}

// readAll calls line for each line of r.
func readAll(r io.Reader, line func([]byte) error) error {
	rest, err := readLines(bufio.NewReader(r), nil, line)
	if err == nil && len(rest) > 0 {
		err = line(rest)
	}
	return err
}

// followFile calls line for each line of an audit file and of its rotated ones, and
// for each that is written, until ctx ends.
func followFile(ctx context.Context, path string, line func([]byte) error) error {
	files, err := rotatedFiles(path)
	if err != nil {
		return err
	}
	f, err := firstOf(files, line)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	reader, rest := bufio.NewReader(f), []byte(nil)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		// Before the lines are read: a file with a successor is complete.
		after, err := successors(path, f)
		if err != nil {
			return err
		}
		if rest, err = readLines(reader, rest, line); err != nil {
			return err
		}
		if len(after) == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			continue
		}
		if len(rest) > 0 {
			if err := line(rest); err != nil {
				return err
			}
		}
		next, err := firstOf(after, line)
		if err != nil {
			return err
		}
		if again, err := successors(path, f); err != nil || !begins(again, next) {
			// The files were renamed between list and open.
			if err = errors.Join(err, next.Close()); err != nil {
				return err
			}
			continue
		}
		_ = f.Close()
		f, rest = next, nil
		reader.Reset(f)
	}
}

// begins reports whether f is the first of the files that is not compressed.
func begins(files []string, f *os.File) bool {
	mine, err := f.Stat()
	for _, path := range files {
		if !strings.HasSuffix(path, ".gz") && err == nil {
			info, err := os.Stat(path)
			return err == nil && os.SameFile(mine, info)
		}
	}
	return false
}

// firstOf opens the first of the files that is not compressed. It reads those before
// it. A file may have been renamed since the list was made; the last one cannot be
// missing for long.
func firstOf(files []string, line func([]byte) error) (*os.File, error) {
	for i, path := range files {
		if strings.HasSuffix(path, ".gz") {
			if err := readFile(path, line); err != nil {
				return nil, err
			}
			continue
		}
		f, err := os.Open(path)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || i == len(files)-1 {
			return f, err
		}
	}
	return nil, fs.ErrNotExist
}

// successors returns the files that were begun after f, or none while no later one
// has content: until then the server may still write to f.
func successors(path string, f *os.File) ([]string, error) {
	mine, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if now, err := os.Stat(path); err == nil && os.SameFile(mine, now) {
		return nil, nil
	}
	files, err := rotatedFiles(path)
	if err != nil {
		return nil, err
	}
	// Without f, which was removed or compressed, those that were written later.
	after, content := []string(nil), false
	for i, other := range files {
		info, err := os.Stat(other)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case os.SameFile(mine, info):
			after, content = nil, false
		case i == len(files)-1 || info.ModTime().After(mine.ModTime()):
			after, content = append(after, other), content || info.Size() > 0
		}
	}
	if !content {
		return nil, nil
	}
	return after, nil
}
