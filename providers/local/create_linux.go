package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/atomicfile"
	"github.com/sandgate/sandgate/providers/internal/lock"
	shared "github.com/sandgate/sandgate/providers/internal/record"
	"github.com/sandgate/sandgate/providers/local/disk"
	"github.com/sandgate/sandgate/providers/local/oci"
)

const (
	startTimeout   = 30 * time.Second
	cleanupTimeout = 30 * time.Second
)

var errSlowStart = fmt.Errorf("the agent did not answer within %v: %w", startTimeout, providers.ErrStartTimeout)

// Create starts a container with one call of the runtime. Its first process is
// the agent, and Create returns when the agent has spoken.
func (p *Provider) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	options, err := decodeOptions(spec)
	if err != nil {
		return providers.Info{}, nil, err
	}
	if err := checkResources(spec.Resources); err != nil {
		return providers.Info{}, nil, err
	}
	defer p.foreground.enter()()
	held, err := p.locks.Acquire(ctx, name)
	if err != nil {
		return providers.Info{}, nil, err
	}
	b := p.layout.sandbox(name)
	defer func() { held.Release(!exists(string(b))) }()

	old, err := readRecord(b)
	switch {
	case err == nil && old.Phase == phaseActive:
		return p.join(name, old, spec)
	case err == nil || errors.Is(err, shared.ErrCorrupt) || exists(string(b)):
		// Its creator is gone: it does not hold the lock.
		if err := p.destroy(ctx, held, b, old.container(name), old); err != nil {
			return providers.Info{}, nil, notRemoved(name, err)
		}
	case !errors.Is(err, providers.ErrNotFound):
		return providers.Info{}, nil, err
	}

	if err := p.space.Check(); err != nil {
		return providers.Info{}, nil, err
	}
	rec, conn, err := p.claim(ctx, name, spec)
	if err == nil && rec == nil {
		rec, conn, err = p.build(ctx, held, b, name, spec, options, phaseActive)
	}
	if err != nil {
		return providers.Info{}, nil, err
	}
	p.removals.forget(name)
	info := p.info(name, rec)
	info.Created = true
	return info, conn, nil
}

// join returns a sandbox that exists already.
func (p *Provider) join(name string, rec *record, spec providers.Spec) (providers.Info, net.Conn, error) {
	if rec.Spec.Hash != spec.Hash {
		return providers.Info{}, nil, fmt.Errorf("sandbox %s: %w", name, providers.ErrExists)
	}
	info := p.info(name, rec)
	if info.State != providers.StateActive {
		return providers.Info{}, nil, providers.NotActive(info, "sandbox %q has ended (%s) and must be deleted first", rec.Spec.ID, info.Message)
	}
	return info, nil, nil
}

// build makes the sandbox of a directory, or leaves nothing behind. It returns
// a connection on which the agent has spoken, already closed for a pooled
// sandbox. The record's phase is then last. The caller holds the lock.
func (p *Provider) build(ctx context.Context, held *lock.Lock, b bundle, container string, spec providers.Spec, options templateOptions, last phase) (*record, net.Conn, error) {
	incarnation, err := newIncarnation()
	if err != nil {
		return nil, nil, err
	}
	release, err := p.space.Reserve(b.image(), disk.RoundUp(spec.Resources.DiskBytes))
	if err != nil {
		return nil, nil, err
	}
	defer release()
	// The runtime would make the parent without limits.
	p.limitAll(ctx)
	rec := &record{
		Sandbox: shared.New(spec), Phase: phaseCreating, Container: container, Incarnation: incarnation,
		Runtime: p.runtime.Name, Transport: p.config.Transport, Profile: p.config.Profile, WritableRoot: options.WritableRoot && spec.Image != "",
	}
	if last == phaseUnclaimed {
		rec.Fit = p.fitOf(spec, incarnation)
	}
	conn, err := p.startSandbox(ctx, b, rec, spec, options)
	if err == nil && last == phaseUnclaimed {
		// An agent closes a connection that stays silent.
		_ = conn.Close()
	}
	if err == nil {
		rec.Phase = last
		if err = p.fault(ctx, "record that it is ready"); err == nil {
			err = rec.write(b)
		}
		if err == nil {
			return rec, conn, nil
		}
		_ = conn.Close()
	}
	if full := p.space.TranslateError(err); !errors.Is(err, full) {
		p.log.LogAttrs(ctx, slog.LevelWarn, "a sandbox could not be created: the disk is full", slog.Any("error", err))
		err = full
	}
	// Clean up even if the context has ended.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	return nil, nil, errors.Join(err, p.destroy(clean, held, b, container, rec))
}

// startSandbox starts the container and connects to its agent. On an error the
// record lists what to remove.
func (p *Provider) startSandbox(ctx context.Context, b bundle, rec *record, spec providers.Spec, options templateOptions) (net.Conn, error) {
	timings := newTimings()
	if err := p.fault(ctx, "make its directory"); err != nil {
		return nil, err
	}
	if err := os.Mkdir(string(b), 0o700); err != nil {
		return nil, err
	}
	if err := p.fault(ctx, "write its record"); err != nil {
		return nil, err
	}
	if err := rec.write(b); err != nil {
		return nil, err
	}
	if err := p.fault(ctx, "plan it"); err != nil {
		return nil, err
	}
	pl, err := p.plan(ctx, b, rec, spec, options)
	if err != nil {
		return nil, err
	}
	container, err := pl.container()
	if err != nil {
		return nil, err
	}
	if err := p.fault(ctx, "write its bundle"); err != nil {
		return nil, err
	}
	if err := atomicfile.WriteJSON(b.config(), container); err != nil {
		return nil, err
	}
	if err := atomicfile.WriteJSON(b.connect(), pl.connect()); err != nil {
		return nil, err
	}
	out, err := oci.NewOutput()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	timings.step("plan")
	if err := p.startContainer(ctx, pl, rec, out, timings); err != nil {
		return nil, startError(ctx, err)
	}
	start, cancel := context.WithTimeoutCause(ctx, startTimeout, errSlowStart)
	defer cancel()
	if err := p.fault(ctx, "wait for its agent"); err != nil {
		return nil, err
	}
	conn, err := p.proveReady(start, b, rec)
	if err != nil {
		if text := out.Text(); text != "" {
			err = fmt.Errorf("%w: it wrote: %s", err, text)
		}
		return nil, err
	}
	timings.step("agent")
	p.log.LogAttrs(ctx, slog.LevelDebug, "started a container", append(timings.attrs, slog.String("container", rec.Container))...)
	return conn, nil
}

// startContainer has the runtime start the container.
func (p *Provider) startContainer(ctx context.Context, pl *plan, rec *record, out *oci.Output, timings *timings) error {
	b := pl.bundle
	var files []*os.File
	if pl.socket {
		file, err := listenUnix(string(b), socketName)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		files = append(files, file)
	}
	run := func() error {
		if err := p.fault(ctx, "mount its disk"); err != nil {
			return err
		}
		if err := p.mountFor(pl, rec); err != nil {
			return err
		}
		timings.step("mount")
		if err := p.fault(ctx, "start its container"); err != nil {
			return err
		}
		// Another server that had no sandbox may have removed the parent
		// meanwhile.
		p.limitAll(ctx)
		return p.runtime.Run(ctx, oci.Container{
			ID: pl.id, Bundle: string(b), PidFile: b.pid(), HostNetwork: pl.spec.Network == providers.NetworkFull, Files: files,
		}, out)
	}
	if err := p.fault(ctx, "make its disk"); err != nil {
		return err
	}
	if err := p.prepareDisk(ctx, pl); err != nil {
		return err
	}
	timings.step("disk")
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := disk.WithPrivateMounts(run); err != nil {
		return err
	}
	timings.step("runtime")
	if err := p.fault(ctx, "find its first process"); err != nil {
		return err
	}
	pid, err := oci.ReadPID(b.pid())
	if err != nil {
		return err
	}
	rec.Init, err = oci.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("the agent exited immediately: %w: %s", providers.ErrAgentCannotStart, out.Text())
	}
	if p.runtime.GVisor {
		rec.Helper = oci.Helper(p.cgroups.Members(rec.Container), pid)
	}
	return nil
}

func startError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("start the sandbox: %w", errors.Join(context.Cause(ctx), err))
	}
	for _, known := range []error{providers.ErrInvalid, providers.ErrAgentCannotStart, providers.ErrExhausted} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", providers.ErrStartFailed, err)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// limitAll sets the limits of all sandboxes together. Describe reports why they
// can't be set.
func (p *Provider) limitAll(ctx context.Context) {
	if err := p.cgroups.LimitAll(p.totalLimits); err != nil {
		p.log.LogAttrs(ctx, slog.LevelDebug, "cannot limit all sandboxes together", slog.Any("error", err))
	}
}

// timings are the durations of the steps of a creation, for its log record.
type timings struct {
	last  time.Time
	attrs []slog.Attr
}

func newTimings() *timings { return &timings{last: time.Now()} }

// step ends a step.
func (t *timings) step(name string) {
	now := time.Now()
	t.attrs = append(t.attrs, slog.Duration(name, now.Sub(t.last)))
	t.last = now
}

// fault calls the hook by which tests let a step fail or hang.
func (p *Provider) fault(ctx context.Context, step string) error {
	if p.config.fault == nil {
		return nil
	}
	return p.config.fault(ctx, step)
}
