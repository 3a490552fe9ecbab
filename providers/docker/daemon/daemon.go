// Package daemon connects to a Docker daemon and describes its errors.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
)

// NewClient returns a client for the daemon at an address such as
// "unix:///var/run/docker.sock"; empty: what DOCKER_HOST and the variables beside it
// say, else the platform's default. Ping or the first request agrees with the daemon on
// a version of the API.
func NewClient(host string) (*client.Client, error) {
	opts := []client.Opt{client.FromEnv}
	if host != "" {
		opts = append(opts, client.WithHost(host))
	}
	c, err := client.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("address of the Docker daemon: %w: %w", err, providers.ErrInvalid)
	}
	return c, nil
}

// Connect checks that the daemon answers, in a version of the API that the client can
// use, and has Linux containers. Errors wrap ErrUnavailable or ErrUnsupported.
func Connect(ctx context.Context, c *client.Client) error {
	ping, err := c.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	if errdefs.IsInvalidArgument(err) {
		return fmt.Errorf("the Docker daemon at %s is too old: it has version %s of the API, and version %s is needed (Docker 19.03): %w",
			c.DaemonHost(), ping.APIVersion, client.MinAPIVersion, providers.ErrUnsupported)
	}
	if err != nil {
		return Error(ctx, c, "connect", err)
	}
	if ping.OSType != "" && ping.OSType != "linux" {
		return fmt.Errorf("the Docker daemon at %s runs %s containers; it must run Linux containers: %w", c.DaemonHost(), ping.OSType, providers.ErrUnsupported)
	}
	return nil
}

// Error describes what the daemon could not do. It wraps ErrUnavailable if the daemon
// does not answer, and ErrStartFailed otherwise.
func Error(ctx context.Context, c *client.Client, what string, err error) error {
	host := c.DaemonHost()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, errors.Join(context.Cause(ctx), err))
	case errors.Is(err, fs.ErrPermission), client.IsErrConnectionFailed(err) && denied(host):
		return fmt.Errorf("%s: this user may not use the Docker daemon at %s; run as root or in the group docker: %w: %w", what, host, err, providers.ErrUnavailable)
	case client.IsErrConnectionFailed(err), errors.Is(err, context.DeadlineExceeded), errdefs.IsUnavailable(err):
		return fmt.Errorf("%s: the Docker daemon at %s does not answer; is it running? %w: %w", what, host, err, providers.ErrUnavailable)
	default:
		return fmt.Errorf("%s: %w: %w", what, err, providers.ErrStartFailed)
	}
}

// denied reports whether this user may not connect to a unix socket. The client drops
// that cause from its errors.
func denied(host string) bool {
	path, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return false
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, fs.ErrPermission)
}
