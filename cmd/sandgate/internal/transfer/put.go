package transfer

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

// Put copies from this machine into the sandbox.
func (c *Copy) Put(ctx context.Context, source, destination string) error {
	if source == "-" {
		bar := c.bar("standard input", -1)
		defer bar.end()
		_, err := c.Sandbox.UploadFile(ctx, sandgate.File{Path: destination, Content: c.Stdin, Progress: bar.set})
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
	if destination, err = c.into(ctx, destination, filepath.Base(absolute)); err != nil {
		return err
	}
	if info.IsDir() {
		if !c.Recursive {
			return isDirectoryError(source)
		}
		return c.putTree(ctx, source, destination)
	}
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	bar := c.bar(filepath.Base(source), info.Size())
	defer bar.end()
	_, err = c.Sandbox.UploadFile(ctx, sandgate.File{
		Path: destination, Content: file, Mode: new(uint32(info.Mode().Perm())), Progress: bar.set,
	})
	return err
}

// putTree copies a directory and everything in it. Links and special files are
// skipped with a notice.
func (c *Copy) putTree(ctx context.Context, source, destination string) error {
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
			_, err := c.Sandbox.MakeDirectory(ctx, target)
			return err
		case !entry.Type().IsRegular():
			c.skip(name, entry.Type()&fs.ModeSymlink != 0)
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		total += info.Size()
		files = append(files, sandgate.File{Path: target, Content: &lazy{name: name}, Mode: new(uint32(info.Mode().Perm()))})
		return nil
	})
	if err != nil {
		return err
	}
	bar := c.bar(filepath.Base(source), total)
	defer bar.end()
	for i := range files {
		files[i].Progress = bar.part()
	}
	for len(files) > 0 {
		n := min(batch, len(files))
		results, err := c.Sandbox.Upload(ctx, files[:n]...)
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
