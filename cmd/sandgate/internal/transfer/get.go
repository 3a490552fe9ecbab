package transfer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/terminal"
)

// Get copies from the sandbox to this machine.
func (c *Copy) Get(ctx context.Context, source, destination string) error {
	if destination == "-" {
		bar := c.bar(path.Base(source), -1)
		defer bar.end()
		_, err := c.Sandbox.DownloadFile(ctx, source, c.Stdout, bar.setOf)
		return err
	}
	info, err := os.Stat(destination)
	isDirectory := err == nil && info.IsDir() || strings.HasSuffix(destination, string(filepath.Separator))
	if isDirectory && path.Base(source) != "/" {
		destination = filepath.Join(destination, path.Base(source))
	}
	if c.Recursive {
		info, err := c.Sandbox.Stat(ctx, source)
		if err != nil {
			return err
		}
		if info.GetType() == sandgate.Directory {
			return c.getTree(ctx, source, destination)
		}
	}
	root, err := os.OpenRoot(filepath.Dir(destination))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	bar := c.bar(path.Base(source), -1)
	defer bar.end()
	err = c.fetch(ctx, root, source, filepath.Base(destination), bar)
	if errors.Is(err, sandgate.ErrFileIsDirectory) {
		return isDirectoryError(source)
	}
	return err
}

// getTree copies a directory and everything in it. The names come from the sandbox,
// which is not trusted, so all files are written through an os.Root. Links and
// special files are skipped with a notice.
func (c *Copy) getTree(ctx context.Context, source, destination string) error {
	if err := os.MkdirAll(destination, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(destination)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	bar := c.bar(path.Base(source), -1)
	defer bar.end()
	return c.getDirectory(ctx, root, source, ".", bar)
}

func (c *Copy) getDirectory(ctx context.Context, root *os.Root, source, below string, bar *progress) error {
	for entry, err := range c.Sandbox.List(ctx, source) {
		if err != nil {
			return err
		}
		name := path.Base(entry.GetPath())
		if name == "." || name == ".." || !filepath.IsLocal(name) {
			return fmt.Errorf("the sandbox returned %q, which is not a file name", terminal.Clean(name))
		}
		from, to := path.Join(source, name), filepath.Join(below, name)
		switch entry.GetType() {
		case sandgate.Directory:
			if err := root.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			err = c.getDirectory(ctx, root, from, to, bar)
		case sandgate.Regular:
			err = c.fetch(ctx, root, from, to, bar)
		case sandgate.Symlink:
			c.skip(terminal.Clean(from), true)
		default:
			c.skip(terminal.Clean(from), false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fetch downloads one file beside its destination and renames it when it is
// complete, so that a copy that fails keeps the old file.
func (c *Copy) fetch(ctx context.Context, root *os.Root, source, destination string, bar *progress) (err error) {
	part := filepath.Join(filepath.Dir(destination), "."+filepath.Base(destination)+".sandgate-part")
	file, err := root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close(), root.Remove(part))
		}
	}()
	info, err := c.Sandbox.DownloadFile(ctx, source, file, bar.partOf())
	if err != nil {
		return err
	}
	if err := file.Chmod(fs.FileMode(info.GetMode()) & 0o777); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return root.Rename(part, destination)
}
