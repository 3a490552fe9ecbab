package docker

import (
	"cmp"
	"context"
	"fmt"
	"net"

	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/daemon"
	"github.com/sandgate/sandgate/providers/docker/image"
	"github.com/sandgate/sandgate/providers/internal/directory"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// stopSeconds is how long the agent has to end by itself. It needs far less.
const stopSeconds = 2

// Suspend records the suspension and stops the container. If it is interrupted, it
// can be repeated.
func (p *Provider) Suspend(ctx context.Context, name string) (providers.Info, error) {
	return p.Change(ctx, "suspend", name, func(d directory.Dir, rec *record) (providers.Info, error) {
		if rec.WritableRoot {
			return providers.Info{}, fmt.Errorf("suspend %s: its template has writable_root, whose files a suspension would lose: %w", name, providers.ErrUnsupported)
		}
		if rec.Phase == directory.Active {
			if info, err := (driver{p}).Observe(ctx, name, rec); err != nil {
				return info, err
			} else if info.State != providers.StateActive {
				return info, providers.NotActive(info, "suspend %s: it is %s", name, info.Status())
			}
			rec.Phase = directory.Suspended
			if err := directory.Write(d, rec); err != nil {
				return providers.Info{}, err
			}
		}
		if err := p.stopContainer(ctx, rec.Container); err != nil {
			return providers.Info{}, p.daemonError(ctx, "stop the container of "+name, err)
		}
		return driver{p}.Info(name, rec), nil
	})
}

// Resume starts a new container with the volumes of the old one: a container keeps
// its arguments for ever, and the agent's have the incarnation.
func (p *Provider) Resume(ctx context.Context, name string) (providers.Info, net.Conn, error) {
	var conn net.Conn
	info, err := p.Change(ctx, "resume", name, func(d directory.Dir, rec *record) (providers.Info, error) {
		if rec.Phase == directory.Active {
			info, err := driver{p}.Observe(ctx, name, rec)
			if err == nil && info.State != providers.StateActive {
				err = providers.NotActive(info, "resume %s: it is %s", name, info.Status())
			}
			return info, err
		}
		pl, base, err := p.replan(ctx, d, name, rec)
		if err != nil {
			return providers.Info{}, err
		}
		rec.Incarnation = shared.Random()
		if conn, err = p.start(ctx, pl, base); err != nil {
			run, cancel := daemon.Finish(ctx)
			defer cancel()
			_, _ = p.docker.ContainerStop(run, rec.Container, client.ContainerStopOptions{Timeout: new(0)})
			return providers.Info{}, err
		}
		rec.Phase = directory.Active
		if err := directory.Write(d, rec); err != nil {
			return providers.Info{}, err
		}
		info := driver{p}.Info(name, rec)
		info.State = providers.StateActive
		return info, nil
	})
	if err != nil && conn != nil {
		_ = conn.Close()
		conn = nil
	}
	return info, conn, err
}

// replan plans the container of a suspended sandbox anew. The values of its
// environment are in the stopped container only.
func (p *Provider) replan(ctx context.Context, d directory.Dir, name string, rec *record) (*plan, image.Image, error) {
	o, err := decodeOptions(rec.Spec)
	if err != nil {
		return nil, image.Image{}, err
	}
	run, cancel := daemon.Finish(ctx)
	defer cancel()
	if err := p.settleReplacement(run, rec.Container); err != nil {
		return nil, image.Image{}, p.daemonError(ctx, "finish an earlier resumption of "+name, err)
	}
	old, err := p.findContainer(ctx, rec.Container)
	switch {
	case err != nil:
		return nil, image.Image{}, p.daemonError(ctx, "inspect the container of "+name, err)
	case old == nil:
		return nil, image.Image{}, fmt.Errorf("resume %s: its stopped container was removed, and the values of its environment with it: %w", name, providers.ErrStartFailed)
	}
	base, err := p.images.Find(ctx, cmp.Or(rec.Spec.Image, p.config.Image), o.Pull != pullNever)
	if err != nil {
		return nil, base, err
	}
	rec.Image = base.Digest
	return &plan{
		server: p.id, name: name, dir: d, rec: rec, spec: rec.Spec, options: o, user: o.userOf(base),
		env: old.Config.Env, cpus: p.info.NCPU,
	}, base, nil
}
