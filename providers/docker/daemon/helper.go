package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers/internal/record"
)

// finishTimeout bounds a request that must not be abandoned: the daemon would
// complete it all the same, unseen.
const finishTimeout = 30 * time.Second

// Finish returns a context for requests that must not be abandoned.
func Finish(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
}

const (
	// helperPrefix begins the names of helpers: containers that are no sandboxes.
	helperPrefix = "sandgate-helper-"
	// helperAge is when a helper has been left by a crashed server.
	helperAge = time.Hour
)

// WithHelper creates a container, calls do with its name, and removes it.
func WithHelper(ctx context.Context, c *client.Client, config *container.Config, host *container.HostConfig, do func(name string) error) error {
	name := helperPrefix + record.Random()
	_, err := c.ContainerCreate(ctx, client.ContainerCreateOptions{Name: name, Config: config, HostConfig: host})
	if err != nil {
		return err
	}
	err = do(name)
	_, removal := c.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	return errors.Join(err, removal)
}

// RemoveOldHelpers removes what crashed servers have left.
func RemoveOldHelpers(ctx context.Context, c *client.Client) error {
	// Podman's names have no slash.
	list, err := c.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("name", "^/?"+helperPrefix)})
	for _, found := range list.Items {
		if time.Since(time.Unix(found.Created, 0)) > helperAge {
			_, removal := c.ContainerRemove(ctx, found.ID, client.ContainerRemoveOptions{RemoveVolumes: true})
			err = errors.Join(err, removal)
		}
	}
	return err
}
