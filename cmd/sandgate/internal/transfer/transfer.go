// Package transfer copies files and directories into a sandbox, or out of it.
package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// Copy is one copy. "-" as the path on this machine is Stdin or Stdout.
type Copy struct {
	Sandbox   *sandgate.Sandbox
	Recursive bool // else a directory is an error
	Stdin     io.Reader
	Stdout    io.Writer
	// Progress shows a bar if it is a terminal. Nil: none.
	Progress io.Writer
	// Notice reports what is not copied.
	Notice func(format string, args ...any)
}

// into returns the path to write in the sandbox: destination, or name in it if
// destination is a directory.
func (c *Copy) into(ctx context.Context, destination, name string) (string, error) {
	if strings.HasSuffix(destination, "/") {
		return path.Join(destination, name), nil
	}
	info, err := c.Sandbox.Stat(ctx, destination)
	switch {
	case errors.Is(err, sandgate.ErrFileNotFound):
		return destination, nil
	case err != nil:
		return "", err
	case info.GetType() == sandgate.Directory || info.GetTargetType() == sandgate.Directory:
		return path.Join(destination, name), nil
	}
	return destination, nil
}

func isDirectoryError(source string) error {
	return fmt.Errorf("%s is a directory; copy it with -r", source)
}

// skip reports an entry of a tree that is not copied.
func (c *Copy) skip(name string, isLink bool) {
	what := "neither a file nor a directory"
	if isLink {
		what = "a symbolic link"
	}
	c.Notice("%s is skipped: it is %s", name, what)
}
