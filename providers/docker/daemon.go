package docker

import (
	"context"
	"time"

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

// finishTimeout bounds a request that must not be abandoned: the daemon would
// complete it all the same, unseen.
const finishTimeout = 30 * time.Second

func finish(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
}
