//go:build !linux

package docker

import (
	"context"
	"errors"
	"net"
)

// canDialSockets: containers run on another kernel here.
func canDialSockets() bool { return false }

func dialSocket(context.Context, string, string) (net.Conn, error) { return nil, errors.ErrUnsupported }
