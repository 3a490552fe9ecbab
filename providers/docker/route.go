package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/daemon"
	"github.com/sandgate/sandgate/providers/docker/image"
	"github.com/sandgate/sandgate/providers/internal/atomicfile"
	"github.com/sandgate/sandgate/providers/internal/directory"
)

var _ providers.Router = (*Provider)(nil)

// Route makes exactly these prefixes, and the addresses of names, local in the network
// namespace of the sandbox's container. A second container there does that, since the
// provider has nothing but the daemon's API. It costs as much as a sandbox's container,
// so one that never had such prefixes gets none.
func (p *Provider) Route(ctx context.Context, name string, prefixes []netip.Prefix) error {
	d := p.Layout.Sandbox(name)
	rec, err := readRecord(d)
	if err != nil {
		return fmt.Errorf("route %s: %w", name, err)
	}
	if rec.Spec.Network != providers.NetworkProxy {
		return fmt.Errorf("route %s: it has another network mode: %w", name, providers.ErrUnsupported)
	}
	if isGVisor(rec.Runtime) {
		return fmt.Errorf("route %s: gVisor has no local routes: %w", name, providers.ErrUnsupported)
	}
	routed, err := os.ReadFile(d.Path(routesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("route %s: %w", name, err)
	}
	if len(prefixes) == 0 && len(routed) == 0 {
		return nil
	}
	found, err := p.docker.ContainerInspect(ctx, rec.Container, client.ContainerInspectOptions{})
	if err != nil {
		return p.daemonError(ctx, "inspect the container of "+name, err)
	}
	info := driver{p}.Info(name, rec)
	if judge(&info, found.Container.State); rec.Phase != directory.Active || info.State != providers.StateActive {
		return providers.NotActive(info, "route %s: it is %s", name, info.Status())
	}
	// A container that starts again has another namespace.
	args := make([]string, 0, 1+len(prefixes))
	for _, prefix := range prefixes {
		args = append(args, prefix.String())
	}
	wanted := strings.Join(append([]string{found.Container.ID, found.Container.State.StartedAt}, args...), "\n")
	if string(routed) == wanted {
		return nil
	}
	if err := p.runRoute(ctx, found.Container.ID, found.Container.Image, args); err != nil {
		return p.daemonError(ctx, "make the routes of "+name, err)
	}
	return atomicfile.Write(d.Path(routesFile), []byte(wanted))
}

// routesFile has the container, its start and the prefixes of the last Route of a
// sandbox.
const routesFile = "routes"

// runRoute runs the agent's binary as root of a container's network namespace. It is that
// of the image: a sandbox with a writable system could have replaced its own.
func (p *Provider) runRoute(ctx context.Context, id, from string, prefixes []string) error {
	run, cancel := daemon.Finish(ctx)
	defer cancel()
	config := &container.Config{
		Image: from, User: "0", Entrypoint: append([]string{image.AgentPath, "route"}, prefixes...), WorkingDir: "/",
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	host := &container.HostConfig{
		NetworkMode: container.NetworkMode("container:" + id), ReadonlyRootfs: true, Init: new(bool),
		CapDrop: []string{"ALL"}, CapAdd: []string{"NET_ADMIN"}, SecurityOpt: []string{"no-new-privileges"},
		Resources: container.Resources{Memory: 64 << 20, PidsLimit: new(int64(64))},
	}
	return daemon.WithHelper(run, p.docker, config, host, func(name string) error {
		wait := p.docker.ContainerWait(run, name, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
		if _, err := p.docker.ContainerStart(run, name, client.ContainerStartOptions{}); err != nil {
			return err
		}
		select {
		case err := <-wait.Error:
			return err
		case ended := <-wait.Result:
			if ended.StatusCode != 0 {
				return fmt.Errorf("the second container ended with exit code %d: %s", ended.StatusCode, p.output(run, name))
			}
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}
