//go:build !linux

package dial

import (
	"context"
	"errors"
	"net"
)

// Unix is for agents on this machine's kernel.
func Unix(context.Context, string, string) (net.Conn, error) { return nil, errors.ErrUnsupported }
