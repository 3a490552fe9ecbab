package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/sandgate/sandgate/providers"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

const startTimeout = 30 * time.Second

var errSlowStart = fmt.Errorf("the agent did not answer within %v: %w", startTimeout, providers.ErrStartTimeout)

// Create starts a container whose first process is the agent, and returns when the
// agent has spoken.
func (p *Provider) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	o, err := decodeOptions(spec)
	if err != nil {
		return providers.Info{}, nil, err
	}
	held, err := p.locks.Acquire(ctx, name)
	if err != nil {
		return providers.Info{}, nil, err
	}
	h := p.layout.sandbox(name)
	defer func() { held.Release(!h.exists()) }()
	old, err := readRecord(h)
	switch {
	case err == nil && (old.Phase == phaseActive || old.Phase == phaseSuspended):
		return p.join(ctx, name, old, spec)
	case err == nil || errors.Is(err, shared.ErrCorrupt) || h.exists():
		// Its creator is gone: it does not hold the lock.
		if err := p.destroy(ctx, h, name, old); err != nil {
			return providers.Info{}, nil, err
		}
	case !errors.Is(err, providers.ErrNotFound):
		return providers.Info{}, nil, err
	}
	rec, conn, err := p.claim(ctx, name, spec)
	if err == nil && rec == nil {
		rec, conn, err = p.build(ctx, h, name, spec, o, phaseActive)
	}
	if err != nil {
		return providers.Info{}, nil, err
	}
	info := p.infoOf(name, rec)
	info.State, info.Created = providers.StateActive, true
	return info, conn, nil
}

// join returns a sandbox that exists already.
func (p *Provider) join(ctx context.Context, name string, rec *record, spec providers.Spec) (providers.Info, net.Conn, error) {
	if rec.Spec.Hash != spec.Hash {
		return providers.Info{}, nil, fmt.Errorf("sandbox %s: %w", name, providers.ErrExists)
	}
	info, err := p.observe(ctx, name, rec)
	if err != nil {
		return providers.Info{}, nil, err
	}
	switch info.State {
	case providers.StateActive:
		return info, nil, nil
	case providers.StateSuspended:
		return providers.Info{}, nil, providers.NotActive(info, "sandbox %q is suspended and must be resumed first", rec.Spec.ID)
	default:
		return providers.Info{}, nil, providers.NotActive(info, "sandbox %q has ended (%s) and must be deleted first", rec.Spec.ID, info.Message)
	}
}

// build makes the sandbox of a directory, or leaves nothing behind. It returns a
// connection on which the agent has spoken, already closed for a member of a pool.
// The record's phase is then last. The caller holds the lock.
func (p *Provider) build(ctx context.Context, h home, name string, spec providers.Spec, o options, last phase) (*record, net.Conn, error) {
	if ctx.Err() != nil {
		return nil, nil, fmt.Errorf("create %s: %w", name, context.Cause(ctx))
	}
	rec := &record{
		Sandbox: shared.New(spec), Phase: phaseCreating, Container: name, Disk: shared.Random(), Incarnation: shared.Random(),
		Runtime: p.runtimeOf(o), WritableRoot: o.WritableRoot, NotEnforced: spec.Resources.NotEnforced(p.limits()),
	}
	if last == phaseUnclaimed {
		rec.Fit = p.fitOf(spec, rec.Incarnation)
	}
	err := os.Mkdir(string(h), 0o700)
	if err == nil || errors.Is(err, os.ErrExist) {
		err = rec.write(h)
	}
	var conn net.Conn
	if err == nil {
		conn, err = p.startNew(ctx, h, name, rec, spec, o)
	}
	if err == nil {
		if last == phaseUnclaimed {
			// An agent closes a connection that stays silent.
			_ = conn.Close()
		}
		rec.Phase = last
		if err = rec.write(h); err == nil {
			return rec, conn, nil
		}
		_ = conn.Close()
	}
	clean, cancel := finish(ctx)
	defer cancel()
	if removal := p.destroy(clean, h, name, rec); removal != nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "what is left of a creation is removed later", slog.String("sandbox", name), slog.Any("error", removal))
	}
	return nil, nil, err
}

// startNew prepares the image and starts the container of a new sandbox.
func (p *Provider) startNew(ctx context.Context, h home, name string, rec *record, spec providers.Spec, o options) (net.Conn, error) {
	began := time.Now()
	base, err := p.findImage(ctx, spec.Image, o)
	if err != nil {
		return nil, err
	}
	rec.Image = base.digest
	pl := &plan{server: p.id, name: name, home: h, rec: rec, spec: spec, options: o, user: userOf(o, base), env: environment(spec.Env), cpus: p.info.NCPU}
	rec.Unprivileged = !pl.user.isRoot()
	conn, err := p.start(ctx, pl, base)
	if err != nil {
		return nil, err
	}
	p.log.LogAttrs(ctx, slog.LevelDebug, "started a container", slog.String("container", rec.Container), slog.Duration("took", time.Since(began)))
	return conn, nil
}

// destroy removes everything that a sandbox has, the record last. The caller holds
// the lock.
func (p *Provider) destroy(ctx context.Context, h home, name string, rec *record) error {
	run, cancel := finish(ctx)
	defer cancel()
	if rec == nil {
		// The record is written before anything else is made.
		rec = &record{Container: name}
	}
	if err := p.removeContainer(run, rec.Container); err != nil {
		return p.daemonError(run, "delete the container of "+name, err)
	}
	if rec.Disk != "" {
		if err := p.removeVolumes(run, rec); err != nil {
			return p.daemonError(run, "delete the volumes of "+name, err)
		}
	}
	return os.RemoveAll(string(h))
}

// settle removes a sandbox or pool member that is half made or half deleted, unless
// its lock is held.
func (p *Provider) settle(ctx context.Context, h home, name string, whole phase) error {
	unfinished := func() (*record, bool, error) {
		rec, err := readRecord(h)
		switch {
		case err == nil:
			return rec, rec.Phase != whole && rec.Phase != phaseSuspended, nil
		case errors.Is(err, shared.ErrCorrupt), errors.Is(err, providers.ErrNotFound):
			return nil, h.exists(), nil
		}
		return nil, false, err
	}
	if _, ok, err := unfinished(); !ok || err != nil {
		return err
	}
	held, err := p.locks.Try(name)
	if err != nil || held == nil {
		return err
	}
	defer func() { held.Release(!h.exists()) }()
	rec, ok, err := unfinished()
	if !ok || err != nil {
		return err
	}
	p.log.LogAttrs(ctx, slog.LevelInfo, "removing a sandbox that is half made or half deleted", slog.String("sandbox", name))
	return p.destroy(ctx, h, name, rec)
}

// sweep finishes what crashed servers, or a daemon that did not answer, left half done.
func (p *Provider) sweep(ctx context.Context) {
	for _, dir := range []struct {
		path  string
		home  func(string) home
		whole phase
	}{{p.layout.pool(), p.layout.pooled, phaseUnclaimed}, {p.layout.sandboxes(), p.layout.sandbox, phaseActive}} {
		list, err := names(dir.path)
		for _, name := range list {
			err = errors.Join(err, p.settle(ctx, dir.home(name), name, dir.whole))
		}
		if err != nil && ctx.Err() == nil {
			p.log.LogAttrs(ctx, slog.LevelWarn, "half-made sandboxes could not be removed and are tried again", slog.Any("error", err))
		}
	}
}
