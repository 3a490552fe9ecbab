package docker

import (
	"context"

	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers/docker/daemon"
)

// connect checks the daemon and records what it reports about itself.
func (p *Provider) connect(ctx context.Context) error {
	if err := daemon.Connect(ctx, p.docker); err != nil {
		return err
	}
	info, err := p.docker.Info(ctx, client.InfoOptions{})
	if err != nil {
		return p.daemonError(ctx, "connect", err)
	}
	p.info = info.Info
	return nil
}

func (p *Provider) daemonError(ctx context.Context, what string, err error) error {
	return daemon.Error(ctx, p.docker, what, err)
}
