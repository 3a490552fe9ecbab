package docker

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/daemon"
	"github.com/sandgate/sandgate/providers/docker/image"
)

// createContainer replaces a container of this name that this state directory had, but
// no other.
func (p *Provider) createContainer(ctx context.Context, pl *plan) error {
	run, cancel := daemon.Finish(ctx)
	defer cancel()
	_, err := p.docker.ContainerCreate(run, pl.container())
	// Podman reports a name that is taken as an internal error.
	if errdefs.IsConflict(err) || errdefs.IsInternal(err) {
		found, inspectErr := p.docker.ContainerInspect(run, pl.rec.Container, client.ContainerInspectOptions{})
		switch {
		case inspectErr == nil && (found.Container.Config == nil || found.Container.Config.Labels[serverLabel] != p.id):
			return fmt.Errorf("the Docker daemon has a container %s that is not of this server's state directory %s: use the state directory of the server that made it, or remove it with \"docker rm --force %s\": %w",
				pl.rec.Container, p.config.StateDir, pl.rec.Container, providers.ErrExists)
		case inspectErr == nil || errdefs.IsConflict(err):
			err = p.replaceContainer(run, pl)
		}
	}
	if err != nil {
		return p.daemonError(ctx, "create the container", err)
	}
	return p.checkCreated(run, pl)
}

// checkCreated returns an error if the daemon has left out a runtime or GPUs, as Podman
// does. A sandbox must not run with less isolation than its template says.
func (p *Provider) checkCreated(ctx context.Context, pl *plan) error {
	if pl.options.Runtime == "" && pl.options.GPUs == 0 {
		return nil
	}
	found, err := p.docker.ContainerInspect(ctx, pl.rec.Container, client.ContainerInspectOptions{})
	if err != nil {
		return p.daemonError(ctx, "inspect the new container", err)
	}
	h := found.Container.HostConfig
	switch {
	case h == nil || pl.options.Runtime != "" && h.Runtime != pl.options.Runtime:
		return fmt.Errorf("the template's runtime %q: the daemon ignores the runtime of a container, as Podman does; make it the daemon's default, and leave it out of the template: %w", pl.options.Runtime, providers.ErrUnsupported)
	case pl.options.GPUs != 0 && len(h.DeviceRequests) == 0:
		return fmt.Errorf("the template's gpus: the daemon ignores requests for GPUs, as Podman does: %w", providers.ErrUnsupported)
	}
	return nil
}

func (p *Provider) removeVolumes(ctx context.Context, rec *record) error {
	var all errgroup.Group
	for _, place := range image.Places {
		all.Go(func() error {
			_, err := p.docker.VolumeRemove(ctx, volumeName(rec, place.Name), client.VolumeRemoveOptions{Force: true})
			if errdefs.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
	return all.Wait()
}

// findContainer returns a container that this state directory's servers made, by its
// name; nil if there is none.
func (p *Provider) findContainer(ctx context.Context, name string) (*container.InspectResponse, error) {
	found, err := p.docker.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case found.Container.Config == nil || found.Container.Config.Labels[serverLabel] != p.id:
		return nil, nil
	}
	return &found.Container, nil
}

// stopContainer ends a container's processes, if it has any.
func (p *Provider) stopContainer(ctx context.Context, name string) error {
	_, err := p.docker.ContainerStop(ctx, name, client.ContainerStopOptions{Timeout: new(stopSeconds)})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// removeContainer ends a container's processes and removes it, if it is of this state
// directory.
func (p *Provider) removeContainer(ctx context.Context, name string) error {
	found, err := p.findContainer(ctx, name)
	if err != nil || found == nil {
		return err
	}
	for {
		_, err = p.docker.ContainerRemove(ctx, found.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if !errdefs.IsConflict(err) {
			break
		}
		// Another removal is under way: the name is free when it has ended.
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}
