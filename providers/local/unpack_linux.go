package local

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandgate/sandgate/providers"
)

// maxImageBytes bounds what an image may unpack to.
const maxImageBytes = 64 << 30

const (
	whiteout       = ".wh."
	opaqueWhiteout = ".wh..wh..opq"
)

func unpackImage(ctx context.Context, img v1.Image, root string) error {
	layers, err := img.Layers()
	if err != nil {
		return fmt.Errorf("%w: %w", err, providers.ErrInvalid)
	}
	x, err := newExtractor(root)
	if err != nil {
		return err
	}
	defer x.close()
	for _, layer := range layers {
		r, err := layer.Uncompressed()
		if err != nil {
			return fmt.Errorf("%w: %w", err, providers.ErrInvalid)
		}
		err = x.layer(ctx, r)
		if err := errors.Join(err, r.Close()); err != nil {
			return err
		}
	}
	return nil
}

// extractor unpacks layers below a directory. An image is somebody else's data:
// no name in it, and no link made by it, may lead out. Names are resolved as the
// image's own processes would see them, and os.Root refuses what is missed.
type extractor struct {
	root *os.Root
	left int64
}

func newExtractor(dir string) (*extractor, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &extractor{root: root, left: maxImageBytes}, nil
}

func (x *extractor) close() { _ = x.root.Close() }

// layer applies one layer. A whiteout hides what lower layers have, never what
// its own layer brings, wherever in the layer it stands.
func (x *extractor) layer(ctx context.Context, r io.Reader) error {
	mine := map[string]bool{}
	entries := tar.NewReader(r)
	for {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a layer: %w: %w", err, providers.ErrInvalid)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := x.entry(h, entries, mine); err != nil {
			return fmt.Errorf("unpack %q: %w", h.Name, err)
		}
	}
}

func (x *extractor) entry(h *tar.Header, content io.Reader, mine map[string]bool) error {
	clean := path.Clean("/" + h.Name)
	if clean == "/" {
		return nil
	}
	dir, err := x.resolve(path.Dir(clean))
	if err != nil {
		return err
	}
	base := path.Base(clean)
	if base == opaqueWhiteout {
		return x.clear(dir, mine)
	}
	if hidden, ok := strings.CutPrefix(base, whiteout); ok {
		if hidden == "" || hidden == "." || hidden == ".." {
			return fmt.Errorf("a whiteout of %q: %w", hidden, providers.ErrInvalid)
		}
		if at := path.Join(dir, hidden); !mine[at] {
			return x.root.RemoveAll(at)
		}
		return nil
	}
	if err := x.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	at := path.Join(dir, base)
	for p := at; p != "."; p = path.Dir(p) {
		mine[p] = true
	}
	return x.make(at, h, content)
}

// make makes one file, directory or link in the place of what is there.
func (x *extractor) make(at string, h *tar.Header, content io.Reader) error {
	old, err := x.root.Lstat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case old.IsDir() && h.Typeflag == tar.TypeDir:
	default:
		if err := x.root.RemoveAll(at); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := x.root.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case tar.TypeReg:
		if err := x.file(at, h.Size, content); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if err := x.root.Symlink(h.Linkname, at); err != nil {
			return err
		}
		return x.root.Lchown(at, h.Uid, h.Gid)
	case tar.TypeLink:
		target := path.Clean("/" + h.Linkname)
		dir, err := x.resolve(path.Dir(target))
		if err != nil {
			return err
		}
		return x.root.Link(path.Join(dir, path.Base(target)), at)
	default:
		// Devices and pipes: a sandbox has its own devices and no right to more.
		return nil
	}
	if err := x.root.Lchown(at, h.Uid, h.Gid); err != nil {
		return err
	}
	// Set-id bits mean nothing without new privileges.
	mode := h.FileInfo().Mode()
	return x.root.Chmod(at, mode.Perm()|mode&fs.ModeSticky)
}

func (x *extractor) file(at string, size int64, content io.Reader) error {
	if x.left -= size; x.left < 0 {
		return fmt.Errorf("the image unpacks to more than %d bytes: %w", int64(maxImageBytes), providers.ErrExhausted)
	}
	f, err := x.root.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// clear removes what lower layers put into a directory.
func (x *extractor) clear(dir string, mine map[string]bool) error {
	d, err := x.root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	if err := errors.Join(err, d.Close()); err != nil {
		return err
	}
	for _, e := range entries {
		at := path.Join(dir, e.Name())
		switch {
		case !mine[at]:
			err = x.root.RemoveAll(at)
		case e.IsDir():
			err = x.clear(at, mine)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

const maxLinks = 255

// resolve follows the links in a directory's name as if the image were the
// whole file system, and returns the name relative to the root, without links.
// What does not exist is taken as it is written.
func (x *extractor) resolve(dir string) (string, error) {
	done := "."
	rest := strings.Split(strings.Trim(path.Clean("/"+dir), "/"), "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		at := path.Join(done, part)
		info, err := x.root.Lstat(at)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			done = at
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("too many links in %q: %w", dir, providers.ErrInvalid)
		}
		target, err := x.root.Readlink(at)
		if err != nil {
			return "", err
		}
		if path.IsAbs(target) {
			done = "."
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return done, nil
}
