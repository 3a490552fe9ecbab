package docker

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/daemon"
	"github.com/sandgate/sandgate/providers/docker/execstream"
	"github.com/sandgate/sandgate/providers/docker/image"
	"github.com/sandgate/sandgate/providers/internal/dial"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/internal/lock"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// driver makes, observes and removes sandboxes for the Provider's directories.
type driver struct{ *Provider }

// Build starts the container of a new sandbox.
func (d driver) Build(ctx context.Context, n *newSandbox) (*record, net.Conn, error) {
	o, err := decodeOptions(n.Spec)
	if err != nil {
		return nil, nil, err
	}
	n.Runtime, n.WritableRoot, n.NotEnforced = d.runtimeOf(o), o.WritableRoot, n.Spec.Resources.NotEnforced(d.limits())
	if isGVisor(n.Runtime) {
		n.NotEnforced = append(n.NotEnforced, "seccomp: gVisor, whose own kernel handles the system calls, does not load Docker's profile")
	}
	rec := &record{Base: n.Base, Disk: shared.Random(), Socket: "socket-" + shared.Random()}
	return n.Make(ctx, rec, func() (net.Conn, error) { return d.startNew(ctx, n.Dir, rec, n.Spec, o) })
}

// Open makes a new connection by the sandbox's transport.
func (d driver) Open(ctx context.Context, dir directory.Dir, rec *record) (net.Conn, error) {
	if rec.Transport == TransportSocket {
		return dial.Unix(ctx, rec.socketIn(dir), socketName)
	}
	made, err := d.docker.ExecCreate(ctx, rec.Container, client.ExecCreateOptions{
		AttachStdin: true, AttachStdout: true, AttachStderr: true, Cmd: []string{image.AgentPath, "connect"},
	})
	if err != nil {
		return nil, err
	}
	stream, err := d.docker.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, err
	}
	return execstream.New(stream.HijackedResponse), nil
}

// Info returns what the record has, with the state that it implies. An active sandbox
// has no state yet: its container decides.
func (driver) Info(name string, rec *record) providers.Info {
	out := rec.Info(name)
	out.Unprivileged, out.ImageDigest = rec.Unprivileged, rec.Image
	if rec.Phase == directory.Active {
		out.Transport = "exec"
		if rec.Transport == TransportSocket {
			out.Transport = "unix"
		}
	}
	return out
}

// Observe returns a sandbox with the state that its container gives it.
func (d driver) Observe(ctx context.Context, name string, rec *record) (providers.Info, error) {
	out := d.Info(name, rec)
	if rec.Phase != directory.Active {
		return out, nil
	}
	found, err := d.docker.ContainerInspect(ctx, rec.Container, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		out.State, out.Message = providers.StateFailed, "its container was removed"
		return out, nil
	}
	if err != nil {
		return out, d.daemonError(ctx, "inspect the container of "+name, err)
	}
	judge(&out, found.Container.State)
	return out, nil
}

// judge sets the state of an active sandbox by that of its container. Docker also
// reports a lack of memory if a command was killed, so the agent's own end decides.
func judge(out *providers.Info, s *container.State) {
	const killed = 128 + 9
	switch {
	case s != nil && s.Running:
		out.State = providers.StateActive
		if s.Paused {
			out.Message = "its container is paused"
		}
	case s != nil && s.OOMKilled && s.ExitCode == killed:
		out.State, out.Failure = providers.StateFailed, providers.FailureOutOfMemory
		out.Message = "the agent was killed because memory ran out"
	case s != nil:
		out.State, out.Message = providers.StateFailed, fmt.Sprintf("its container ended with exit code %d", s.ExitCode)
	default:
		out.State, out.Message = providers.StateFailed, "its container has no state"
	}
}

// Alive lists all running containers once.
func (d driver) Alive(ctx context.Context) func(string, *record) (bool, error) {
	list := sync.OnceValues(func() (map[string]bool, error) { return d.running(ctx) })
	return func(id string, rec *record) (bool, error) {
		names, err := list()
		if names[rec.Container] || err != nil {
			return err == nil, err
		}
		// It may have started after the list.
		claimed := *rec
		claimed.Phase = directory.Active
		info, err := d.Observe(ctx, id, &claimed)
		return info.State == providers.StateActive, err
	}
}

// running returns the names of the containers that run.
func (d driver) running(ctx context.Context) (map[string]bool, error) {
	filters := make(client.Filters).Add("label", serverLabel+"="+d.id).Add("status", string(container.StateRunning))
	list, err := d.docker.ContainerList(ctx, client.ContainerListOptions{Filters: filters})
	if err != nil {
		return nil, d.daemonError(ctx, "list containers", err)
	}
	names := make(map[string]bool, len(list.Items))
	for _, c := range list.Items {
		for _, n := range c.Names {
			names[n[1:]] = true // without the slash
		}
	}
	return names, nil
}

// Destroy removes the container, the volumes and the directory.
func (d driver) Destroy(ctx context.Context, _ *lock.Lock, dir directory.Dir, name string, rec *record) error {
	run, cancel := daemon.Finish(ctx)
	defer cancel()
	for _, name := range []string{name, formerName(name)} {
		if err := d.removeContainer(run, name); err != nil {
			return d.daemonError(run, "delete the container of "+dir.Name(), err)
		}
	}
	if rec != nil {
		if err := d.removeVolumes(run, rec); err != nil {
			return d.daemonError(run, "delete the volumes of "+dir.Name(), err)
		}
	}
	return os.RemoveAll(string(dir))
}

// Removal implements directory.Driver: the sweep retries removals.
func (driver) Removal(string, string) (decided bool, failure string) { return false, "" }
