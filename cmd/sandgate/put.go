package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// batch is how many files of a directory go through one call.
const batch = 256

// put copies from this machine into the sandbox.
func (t *transfer) put(ctx context.Context, source, destination string) error {
	if source == "-" {
		bar := t.bar("standard input", -1)
		defer bar.end()
		_, err := t.sandbox.UploadFile(ctx, sandgate.File{Path: destination, Content: t.cli.stdin, Progress: bar.set})
		return err
	}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	absolute, err := filepath.Abs(source)
	if err != nil {
		return err
	}
	if destination, err = t.into(ctx, destination, filepath.Base(absolute)); err != nil {
		return err
	}
	if info.IsDir() {
		if !t.recursive {
			return isDirectoryError(source)
		}
		return t.putTree(ctx, source, destination)
	}
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	bar := t.bar(filepath.Base(source), info.Size())
	defer bar.end()
	_, err = t.sandbox.UploadFile(ctx, sandgate.File{
		Path: destination, Content: file, Mode: permissions(info.Mode()), Progress: bar.set,
	})
	return err
}

// putTree copies a directory and everything in it. Links and special files are
// skipped with a notice.
func (t *transfer) putTree(ctx context.Context, source, destination string) error {
	var files []sandgate.File
	total := int64(0)
	err := filepath.WalkDir(source, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(source, name)
		if err != nil {
			return err
		}
		target := path.Join(destination, filepath.ToSlash(below))
		switch {
		case entry.IsDir():
			_, err := t.sandbox.MakeDirectory(ctx, target)
			return err
		case !entry.Type().IsRegular():
			t.skip(name, entry.Type()&fs.ModeSymlink != 0)
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		total += info.Size()
		files = append(files, sandgate.File{Path: target, Content: &lazy{name: name}, Mode: permissions(info.Mode())})
		return nil
	})
	if err != nil {
		return err
	}
	bar := t.bar(filepath.Base(source), total)
	defer bar.end()
	for i := range files {
		files[i].Progress = bar.part()
	}
	for len(files) > 0 {
		n := min(batch, len(files))
		results, err := t.sandbox.Upload(ctx, files[:n]...)
		if err != nil {
			return err
		}
		for _, r := range results {
			if r.Err != nil {
				return r.Err
			}
		}
		files = files[n:]
	}
	return nil
}

// permissions returns the permission bits of a mode.
func permissions(mode fs.FileMode) *uint32 {
	bits := uint32(mode.Perm())
	return &bits
}

// lazy is a file that its first Read opens and its last one closes, so that a
// directory of any size needs one open file.
type lazy struct {
	name string
	file *os.File
	done bool
}

func (l *lazy) Read(p []byte) (int, error) {
	if l.done {
		return 0, io.EOF
	}
	if l.file == nil {
		file, err := os.Open(l.name)
		if err != nil {
			return 0, err
		}
		l.file = file
	}
	n, err := l.file.Read(p)
	if err != nil {
		l.done = true
		err = errors.Join(err, l.file.Close())
		if errors.Is(err, io.EOF) {
			err = io.EOF
		}
	}
	return n, err
}
