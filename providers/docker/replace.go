package docker

import (
	"context"
	"errors"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers/docker/daemon"
	"github.com/sandgate/sandgate/providers/internal/directory"
)

// A resumption replaces the stopped container of a suspended sandbox, in three steps:
// the old container gets its former name, the new one is created, and the old one is
// removed. The values of the environment are in containers only, so at any time one of
// the two has them. While there is a container with a former name, the replacement is
// unfinished; settleReplacement finishes it.

// formerName is the name of a container that is being replaced. No other container of a
// sandbox has it: names of sandboxes and ends of names of pool members have no dot.
func formerName(container string) string { return container + formerSuffix }

const formerSuffix = ".former"

// replaceContainer creates the plan's container in place of the one that has its name.
// On an error the old one has its name again, or settleReplacement returns it later.
func (p *Provider) replaceContainer(ctx context.Context, pl *plan) error {
	name := pl.rec.Container
	if err := p.settleReplacement(ctx, name); err != nil {
		return err
	}
	_, err := p.docker.ContainerRename(ctx, name, client.ContainerRenameOptions{NewName: formerName(name)})
	if err == nil || errdefs.IsNotFound(err) {
		_, err = p.docker.ContainerCreate(ctx, pl.container())
	}
	return errors.Join(err, p.settleReplacement(ctx, name))
}

// settleReplacement finishes a replacement that was interrupted. If the new container
// was created, the former one is removed; otherwise the former one is the container
// again. It can be repeated after any error or crash. The caller holds the sandbox's
// lock.
func (p *Provider) settleReplacement(ctx context.Context, name string) error {
	former, err := p.findContainer(ctx, formerName(name))
	if err != nil || former == nil {
		return err
	}
	current, err := p.findContainer(ctx, name)
	switch {
	case err != nil:
		return err
	case current != nil:
		return p.removeContainer(ctx, formerName(name))
	}
	_, err = p.docker.ContainerRename(ctx, former.ID, client.ContainerRenameOptions{NewName: name})
	return err
}

// settleSuspended finishes what killed servers left half done of suspended sandboxes:
// it stops containers that run, and finishes replacements.
func (p *Provider) settleSuspended(ctx context.Context) error {
	names, err := p.Layout.Names()
	if err != nil {
		return err
	}
	suspended := make(map[string]string) // names of sandboxes, by container
	for _, name := range names {
		if rec, err := readRecord(p.Layout.Sandbox(name)); err == nil && rec.Phase == directory.Suspended {
			suspended[rec.Container] = name
		}
	}
	if len(suspended) == 0 {
		return nil
	}
	filters := make(client.Filters).Add("label", serverLabel+"="+p.id)
	list, err := p.docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		return p.daemonError(ctx, "list containers", err)
	}
	var errs []error
	for _, c := range list.Items {
		for _, n := range c.Names {
			n, former := strings.CutSuffix(strings.TrimPrefix(n, "/"), formerSuffix)
			if name := suspended[n]; name != "" && (former || c.State == container.StateRunning) {
				errs = append(errs, p.settleOne(ctx, name))
			}
		}
	}
	return errors.Join(errs...)
}

// settleOne does so for one sandbox, unless another call is changing it.
func (p *Provider) settleOne(ctx context.Context, name string) error {
	held, err := p.Locks.Try(name)
	if err != nil || held == nil {
		return err
	}
	d := p.Layout.Sandbox(name)
	defer func() { held.Release(!d.Exists()) }()
	rec, err := readRecord(d)
	if err != nil || rec.Phase != directory.Suspended {
		return nil // it was resumed or deleted meanwhile, or Get reports that it cannot be read
	}
	run, cancel := daemon.Finish(ctx)
	defer cancel()
	if err = p.settleReplacement(run, rec.Container); err == nil {
		err = p.stopContainer(run, rec.Container)
	}
	if err != nil {
		return p.daemonError(run, "finish the suspension of "+name, err)
	}
	return nil
}
