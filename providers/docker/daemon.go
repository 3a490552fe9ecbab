package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
)

// newClient returns a client that agrees with the daemon on a version of the API.
func newClient(host string) (*client.Client, error) {
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

// connect checks that the daemon answers, in a version of the API that the client
// can use, and has Linux containers.
func (p *Provider) connect(ctx context.Context) error {
	ping, err := p.docker.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	if errdefs.IsInvalidArgument(err) {
		return fmt.Errorf("the Docker daemon at %s is too old: it has version %s of the API, and version %s is needed (Docker 19.03): %w",
			p.docker.DaemonHost(), ping.APIVersion, client.MinAPIVersion, providers.ErrUnsupported)
	}
	if err != nil {
		return p.daemonError(ctx, "connect", err)
	}
	if ping.OSType != "" && ping.OSType != "linux" {
		return fmt.Errorf("the Docker daemon at %s runs %s containers; it must run Linux containers: %w", p.docker.DaemonHost(), ping.OSType, providers.ErrUnsupported)
	}
	info, err := p.docker.Info(ctx, client.InfoOptions{})
	if err != nil {
		return p.daemonError(ctx, "connect", err)
	}
	p.info = info.Info
	return nil
}

// daemonError describes what the daemon could not do. It wraps ErrUnavailable if
// the daemon does not answer, and ErrStartFailed otherwise.
func (p *Provider) daemonError(ctx context.Context, what string, err error) error {
	host := p.docker.DaemonHost()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, errors.Join(context.Cause(ctx), err))
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: this user may not use the Docker daemon at %s; run the server as root or in the group docker: %w: %w", what, host, err, providers.ErrUnavailable)
	case client.IsErrConnectionFailed(err), errors.Is(err, context.DeadlineExceeded), errdefs.IsUnavailable(err):
		return fmt.Errorf("%s: the Docker daemon at %s does not answer; is it running? %w: %w", what, host, err, providers.ErrUnavailable)
	default:
		return fmt.Errorf("%s: %w: %w", what, err, providers.ErrStartFailed)
	}
}

// finishTimeout bounds a request that must not be abandoned: the daemon would
// complete it all the same, unseen.
const finishTimeout = 30 * time.Second

func finish(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
}
