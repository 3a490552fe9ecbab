package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
)

// fileSet are the files of an image layout, in a directory or in one archive.
type fileSet interface {
	// open returns a regular file's content and size.
	open(name string) (io.ReadCloser, int64, error)
	io.Closer
}

// layoutDir is a layout in a directory. It rejects links that lead outside.
type layoutDir struct{ root *os.Root }

func (d layoutDir) Close() error { return d.root.Close() }

func (d layoutDir) open(name string) (io.ReadCloser, int64, error) {
	f, err := d.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", err, providers.ErrInvalid)
	}
	return regular(f)
}

func regular(f *os.File) (*os.File, int64, error) {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file: %w", f.Name(), providers.ErrInvalid)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// maxArchiveFiles limits the files of an archive: an image has a few for each
// layer.
const maxArchiveFiles = 10_000

// layoutArchive is a layout in a tar file, which is read in place.
type layoutArchive struct {
	file  *os.File
	files map[string]section
	links map[string]string
}

type section struct{ offset, size int64 }

func openArchive(ctx context.Context, name string) (_ *layoutArchive, err error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, providers.ErrInvalid)
	}
	if f, _, err = regular(f); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	a := &layoutArchive{file: f, files: map[string]section{}, links: map[string]string{}}
	for entries := tar.NewReader(f); ; {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the archive: %w: %w", err, providers.ErrInvalid)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if len(a.files)+len(a.links) >= maxArchiveFiles {
			return nil, fmt.Errorf("the archive has more than %d files: %w", maxArchiveFiles, providers.ErrInvalid)
		}
		name := path.Clean("/" + h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			// The reader has read no further than the header.
			offset, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			a.files[name] = section{offset, h.Size}
		case tar.TypeSymlink:
			// Older archives of Docker store a layer once, with links to it.
			a.links[name] = path.Join(path.Dir(name), h.Linkname)
		case tar.TypeLink:
			a.links[name] = path.Clean("/" + h.Linkname)
		}
	}
}

func (a *layoutArchive) Close() error { return a.file.Close() }

func (a *layoutArchive) open(name string) (io.ReadCloser, int64, error) {
	name = path.Clean("/" + name)
	if target, ok := a.links[name]; ok {
		name = target
	}
	s, ok := a.files[name]
	if !ok {
		return nil, 0, fmt.Errorf("the archive lacks the file %q: %w", name, providers.ErrInvalid)
	}
	return io.NopCloser(io.NewSectionReader(a.file, s.offset, s.size)), s.size, nil
}

// maxJSON is the maximum size of an index, a manifest or a configuration.
const maxJSON = 4 << 20

func readSmall(files fileSet, name string) ([]byte, error) {
	f, size, err := files.open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if size > maxJSON {
		return nil, fmt.Errorf("%s has %d bytes; the maximum is %d: %w", name, size, maxJSON, providers.ErrExhausted)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxJSON))
	if isOurs(err) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, providers.ErrInvalid)
	}
	return data, nil
}
