package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// start creates and starts the plan's container, and connects to its agent.
func (p *Provider) start(ctx context.Context, pl *plan, base baseImage) (net.Conn, error) {
	if err := os.Mkdir(socketIn(pl.dir), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	// The user of the container may have any number here.
	if err := os.Chmod(socketIn(pl.dir), 0o777); err != nil {
		return nil, err
	}
	for again := range 2 {
		var err error
		if pl.image, err = p.prepare(ctx, base, pl.user); err != nil {
			return nil, err
		}
		if pl.rec.Transport, err = p.chooseTransport(ctx, pl.image, pl.rec.Runtime); err != nil {
			return nil, err
		}
		if err := directory.Write(pl.dir, pl.rec); err != nil {
			return nil, err
		}
		err = p.createContainer(ctx, pl)
		if errdefs.IsNotFound(err) && again == 0 {
			p.forgetPrepared()
			continue
		}
		if err != nil {
			return nil, err
		}
		break
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

// createContainer replaces a container of this name that this state directory had, but
// no other.
func (p *Provider) createContainer(ctx context.Context, pl *plan) error {
	run, cancel := finish(ctx)
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
	for _, place := range places {
		all.Go(func() error {
			_, err := p.docker.VolumeRemove(ctx, volumeName(rec, place.name), client.VolumeRemoveOptions{Force: true})
			if errdefs.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
	return all.Wait()
}

// awaitAgent returns a connection on which the agent has spoken.
func (p *Provider) awaitAgent(ctx context.Context, d directory.Dir, rec *record) (net.Conn, error) {
	start, cancel := context.WithTimeoutCause(ctx, startTimeout, errSlowStart)
	defer cancel()
	conn, err := p.connectAgent(start, d, rec)
	if err == nil {
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wait for the agent: %w", errors.Join(context.Cause(ctx), err))
	}
	if start.Err() != nil {
		err = context.Cause(start)
	} else {
		err = fmt.Errorf("%w: %w", err, providers.ErrAgentCannotStart)
	}
	if text := p.output(ctx, rec.Container); text != "" {
		err = fmt.Errorf("%w: it wrote: %s", err, text)
	}
	return nil, err
}

// socketRetry is how soon a socket that does not answer yet is tried again, and
// endCheck how many tries there are between two looks at the container.
const (
	socketRetry = 5 * time.Millisecond
	endCheck    = 40
)

// connectAgent connects as soon as the agent listens. It gives up when the container has
// ended.
func (p *Provider) connectAgent(ctx context.Context, d directory.Dir, rec *record) (net.Conn, error) {
	for tries := 1; ; tries++ {
		conn, err := p.open(ctx, d, rec)
		if err == nil {
			conn, err = awaitByte(ctx, conn)
		}
		if err == nil {
			return conn, nil
		}
		if rec.Transport == TransportExec || tries%endCheck == 0 {
			found, inspectErr := p.docker.ContainerInspect(ctx, rec.Container, client.ContainerInspectOptions{})
			if inspectErr == nil && found.Container.State != nil && !found.Container.State.Running {
				return nil, fmt.Errorf("its container ended with exit code %d", found.Container.State.ExitCode)
			}
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(socketRetry):
		}
	}
}

// output returns the last that a container wrote.
func (p *Provider) output(ctx context.Context, name string) string {
	logs, err := p.docker.ContainerLogs(ctx, name, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: "5"})
	if err != nil {
		return ""
	}
	defer func() { _ = logs.Close() }()
	var out bytes.Buffer
	// What came before an error counts.
	_, _ = stdcopy.StdCopy(&out, &out, io.LimitReader(logs, 4<<10))
	return strings.TrimSpace(strings.ToValidUTF8(out.String(), "?"))
}

// chooseTransport finds out, once, whether the daemon's containers can share a
// directory with this machine. It mounts one into a container that never runs, and
// looks for a file there.
func (p *Provider) chooseTransport(ctx context.Context, image, runtime string) (Transport, error) {
	if isGVisor(runtime) {
		if p.config.Transport == TransportSocket {
			return "", fmt.Errorf("runtime %q cannot use a socket of the host in a sandbox: use transport %q or %q: %w", runtime, TransportAuto, TransportExec, providers.ErrUnsupported)
		}
		return TransportExec, nil
	}
	if p.config.Transport != TransportAuto {
		return p.config.Transport, nil
	}
	if !canDialSockets() {
		return TransportExec, nil
	}
	if known := p.transport.Load(); known != nil {
		return *known, nil
	}
	shares, err := p.sharesFiles(ctx, image)
	if err != nil {
		return "", p.daemonError(ctx, "probe for a shared file system", err)
	}
	t := TransportExec
	if shares {
		t = TransportSocket
	}
	p.transport.Store(&t)
	return t, nil
}

func (p *Provider) sharesFiles(ctx context.Context, image string) (shares bool, err error) {
	token := shared.Random()
	file := filepath.Join(p.layout.probe(), token)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.Remove(file)) }()
	run, cancel := finish(ctx)
	defer cancel()
	made, err := p.docker.ContainerCreate(run, client.ContainerCreateOptions{
		Name:   helperPrefix + token,
		Config: &container.Config{Image: image, Entrypoint: []string{agentPath}},
		HostConfig: &container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{
			{Type: mount.TypeBind, Source: p.layout.probe(), Target: socketDir, ReadOnly: true},
		}},
	})
	if errdefs.IsInvalidArgument(err) {
		return false, nil // there is no such directory where the daemon runs
	}
	if err != nil {
		return false, err
	}
	defer func() {
		_, removal := p.docker.ContainerRemove(run, made.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		err = errors.Join(err, removal)
	}()
	_, err = p.docker.ContainerStatPath(run, made.ID, client.ContainerStatPathOptions{Path: socketDir + "/" + token})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
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
