package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/atomicfile"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/local/disk"
	"github.com/sandgate/sandgate/providers/local/oci"
)

const startTimeout = 30 * time.Second

var errSlowStart = fmt.Errorf("the agent did not answer within %v: %w", startTimeout, providers.ErrStartTimeout)

// Create starts a container with one call of the runtime. Its first process is
// the agent, and Create returns when the agent has spoken.
func (p *Provider) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	if _, err := p.optionsOf(spec); err != nil {
		return providers.Info{}, nil, err
	}
	if err := checkResources(spec.Resources); err != nil {
		return providers.Info{}, nil, err
	}
	defer p.foreground.enter()()
	if !p.layout.Sandbox(name).Exists() {
		if err := p.makeRoom(ctx); err != nil {
			return providers.Info{}, nil, err
		}
	}
	info, conn, err := p.sandboxes.Create(ctx, name, spec)
	if info.Created {
		p.removals.Forget(name)
	}
	return info, conn, err
}

// Build reserves the sandbox's space and starts it. Sandboxes of pools wait for
// those that callers wait for, and for one another, also those of other servers.
func (d driver) Build(ctx context.Context, n *newSandbox) (*record, net.Conn, error) {
	p := d.p
	options, err := p.optionsOf(n.Spec)
	if err != nil {
		return nil, nil, err
	}
	if n.Last == directory.Unclaimed {
		if n.Spec.Image != "" {
			// Before its turn, for which all others wait.
			if err := p.makeRoom(ctx); err != nil {
				return nil, nil, err
			}
			if _, _, err := p.fetchImage(ctx, n.Spec.Image, options); err != nil {
				return nil, nil, p.translateFull(ctx, err)
			}
		}
		if err := p.awaitQuiet(ctx); err != nil {
			return nil, nil, err
		}
		turn, err := p.locks.Acquire(ctx, "_start")
		if err != nil {
			return nil, nil, err
		}
		defer turn.Release(true)
	}
	b := bundle(n.Dir)
	release, err := p.space.Reserve(b.image(), disk.RoundUp(n.Spec.Resources.DiskBytes))
	if err != nil {
		return nil, nil, err
	}
	defer release()
	// The runtime would make the parent without limits.
	p.limitAll(ctx)
	n.Runtime, n.WritableRoot = p.runtime.Name, (options.WritableRoot || options.Root) && n.Spec.Image != ""
	rec := &record{Base: n.Base, Transport: p.config.Transport, Profile: p.config.Profile, Tree: filepath.Base(p.tree(n.Spec)), Root: options.Root, Namespace: options.Root || p.usesNamespaces()}
	rec, conn, err := n.Make(ctx, rec, func() (net.Conn, error) {
		conn, err := p.startSandbox(ctx, b, rec, n.Spec, options)
		return conn, p.translateFull(ctx, err)
	})
	return rec, conn, p.translateFull(ctx, err)
}

// translateFull recognizes a full disk, before anything is removed from it.
func (p *Provider) translateFull(ctx context.Context, err error) error {
	full := p.space.TranslateError(err)
	if !errors.Is(err, full) {
		p.log.LogAttrs(ctx, slog.LevelWarn, "a sandbox could not be created: the disk is full", slog.Any("error", err))
	}
	return full
}

// startSandbox starts the container and connects to its agent. On an error the
// record lists what to remove.
func (p *Provider) startSandbox(ctx context.Context, b bundle, rec *record, spec providers.Spec, options templateOptions) (net.Conn, error) {
	timings := newTimings()
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
	conn, err := driver{p}.Connect(start, directory.Dir(b), rec)
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
	defer pl.startNamespace()()
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
	p.routeNames(ctx, rec)
	timings.step("routes")
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
