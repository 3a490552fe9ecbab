package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/image"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/internal/pool"
)

// Create starts a container whose first process is the agent, and returns when the
// agent has spoken.
func (p *Provider) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	if _, err := decodeOptions(spec); err != nil {
		return providers.Info{}, nil, err
	}
	return p.sandboxes.Create(ctx, name, spec)
}

// refillDelay leaves the first command of a claimed sandbox alone.
const refillDelay = 100 * time.Millisecond

func checkPool(want providers.Pool) error {
	if err := pool.CheckTemplate(want); err != nil {
		return err
	}
	if want.Spec.Image != "" {
		if _, err := image.Parse(want.Spec.Image); err != nil {
			return err
		}
	}
	_, err := decodeOptions(want.Spec)
	return err
}

// startNew starts the container of a new sandbox.
func (p *Provider) startNew(ctx context.Context, d directory.Dir, rec *record, spec providers.Spec, o options) (net.Conn, error) {
	began := time.Now()
	base, err := p.images.Find(ctx, cmp.Or(spec.Image, p.config.Image), o.Pull != pullNever)
	if err != nil {
		return nil, err
	}
	rec.Image = base.Digest
	pl := &plan{server: p.id, name: d.Name(), dir: d, rec: rec, spec: spec, options: o, user: o.userOf(base), env: environment(spec.Env), cpus: p.info.NCPU}
	rec.Unprivileged = !pl.user.Root
	conn, err := p.start(ctx, pl, base)
	if err != nil {
		return nil, err
	}
	p.log.LogAttrs(ctx, slog.LevelDebug, "started a container", slog.String("container", rec.Container), slog.Duration("took", time.Since(began)))
	return conn, nil
}

// start creates and starts the plan's container, and connects to its agent.
func (p *Provider) start(ctx context.Context, pl *plan, base image.Image) (net.Conn, error) {
	if err := p.create(ctx, pl, base); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("create the container: %w", context.Cause(ctx))
	}
	if _, err := p.docker.ContainerStart(ctx, pl.rec.Container, client.ContainerStartOptions{}); err != nil {
		what := "start the container"
		if pl.options.GPUs != 0 {
			what += " with the template's gpus (the daemon's machine needs them and their container toolkit, such as NVIDIA's)"
		}
		return nil, p.daemonError(ctx, what, err)
	}
	return p.awaitAgent(ctx, pl.dir, pl.rec)
}

// create creates the plan's container. It prepares the image where the daemon has no
// prepared one, and takes the transport exec where the daemon cannot mount the directory
// of the agent's socket.
func (p *Provider) create(ctx context.Context, pl *plan, base image.Image) error {
	var err error
	if pl.image, err = p.images.PreparedName(base, pl.user); err != nil {
		return err
	}
	if pl.rec.Transport, err = p.transportFor(pl.rec.Runtime); err != nil {
		return err
	}
	for prepared := false; ; {
		if pl.rec.Transport == TransportSocket {
			if err := makeSocketDir(pl.rec.socketIn(pl.dir)); err != nil {
				return err
			}
		}
		if err := directory.Write(pl.dir, pl.rec); err != nil {
			return err
		}
		err := p.createContainer(ctx, pl)
		switch {
		case errdefs.IsInvalidArgument(err) && pl.rec.Transport == TransportSocket && p.config.Transport == TransportAuto:
			pl.rec.Transport = TransportExec
		case errdefs.IsNotFound(err) && !prepared:
			prepared = true
			if err := p.images.Prepare(ctx, base, pl.user); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// canDialSockets reports whether this process can connect to a socket whoever made it.
// On other systems, containers run on another kernel.
var canDialSockets = runtime.GOOS == "linux" && os.Geteuid() == 0

// transportFor returns the transport to try first.
func (p *Provider) transportFor(runtime string) (Transport, error) {
	switch {
	case isGVisor(runtime) && p.config.Transport == TransportSocket:
		return "", fmt.Errorf("runtime %q cannot use a socket of the host in a sandbox: use transport %q or %q: %w", runtime, TransportAuto, TransportExec, providers.ErrUnsupported)
	case isGVisor(runtime), p.config.Transport == TransportAuto && !canDialSockets:
		return TransportExec, nil
	case p.config.Transport == TransportAuto:
		return TransportSocket, nil
	default:
		return p.config.Transport, nil
	}
}

// makeSocketDir makes a directory for a user who may have any number here.
func makeSocketDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.Chmod(dir, 0o777)
}

// isGVisor reports whether a runtime is gVisor, by its name.
func isGVisor(runtime string) bool {
	return strings.HasPrefix(runtime, "runsc") || strings.HasPrefix(runtime, "io.containerd.runsc.")
}

// runtimeOf returns the runtime that a template's containers have.
func (p *Provider) runtimeOf(o options) string {
	if o.Runtime != "" {
		return o.Runtime
	}
	return p.info.DefaultRuntime
}
