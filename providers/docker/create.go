package docker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/internal/lock"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

const startTimeout = 30 * time.Second

var errSlowStart = fmt.Errorf("the agent did not answer within %v: %w", startTimeout, providers.ErrStartTimeout)

// Create starts a container whose first process is the agent, and returns when the
// agent has spoken.
func (p *Provider) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	if _, err := decodeOptions(spec); err != nil {
		return providers.Info{}, nil, err
	}
	return p.store.Create(ctx, name, spec)
}

// Build starts the container of a new sandbox.
func (d driver) Build(ctx context.Context, n *newSandbox) (*record, net.Conn, error) {
	o, err := decodeOptions(n.Spec)
	if err != nil {
		return nil, nil, err
	}
	n.Runtime, n.WritableRoot, n.NotEnforced = d.p.runtimeOf(o), o.WritableRoot, n.Spec.Resources.NotEnforced(d.p.limits())
	rec := &record{Base: n.Base, Disk: shared.Random()}
	return n.Make(ctx, rec, func() (net.Conn, error) { return d.p.startNew(ctx, n.Dir, rec, n.Spec, o) })
}

// startNew prepares the image and starts the container of a new sandbox.
func (p *Provider) startNew(ctx context.Context, d directory.Dir, rec *record, spec providers.Spec, o options) (net.Conn, error) {
	began := time.Now()
	base, err := p.findImage(ctx, spec.Image, o)
	if err != nil {
		return nil, err
	}
	rec.Image = base.digest
	pl := &plan{server: p.id, name: d.Name(), dir: d, rec: rec, spec: spec, options: o, user: userOf(o, base), env: environment(spec.Env), cpus: p.info.NCPU}
	rec.Unprivileged = !pl.user.isRoot()
	conn, err := p.start(ctx, pl, base)
	if err != nil {
		return nil, err
	}
	p.log.LogAttrs(ctx, slog.LevelDebug, "started a container", slog.String("container", rec.Container), slog.Duration("took", time.Since(began)))
	return conn, nil
}

// Destroy removes the container, the volumes and the directory.
func (d driver) Destroy(ctx context.Context, _ *lock.Lock, dir directory.Dir, container string, rec *record) error {
	p := d.p
	run, cancel := finish(ctx)
	defer cancel()
	for _, name := range []string{container, formerName(container)} {
		if err := p.removeContainer(run, name); err != nil {
			return p.daemonError(run, "delete the container of "+dir.Name(), err)
		}
	}
	if rec != nil {
		if err := p.removeVolumes(run, rec); err != nil {
			return p.daemonError(run, "delete the volumes of "+dir.Name(), err)
		}
	}
	return os.RemoveAll(string(dir))
}

// sweep finishes what crashed servers, or a daemon that did not answer, left half done.
func (p *Provider) sweep(ctx context.Context) {
	if err := p.store.Sweep(ctx); err != nil && ctx.Err() == nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "half-made sandboxes could not be removed and are tried again", slog.Any("error", err))
	}
	if err := p.settleSuspended(ctx); err != nil && ctx.Err() == nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "interrupted suspensions and resumptions could not be finished and are tried again", slog.Any("error", err))
	}
}
