package local

import (
	"context"
	"fmt"
	"os"
	"path"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/disk"
	"github.com/sandgate/sandgate/providers/local/userid"
)

const (
	abstractName  = "unix:@sandgate"
	pathName      = "unix://" + agentState + "/agent.sock"
	defaultHome   = "/home/sandbox"
	defaultTarget = "/workspace"
)

// plan plans the container and makes what it needs besides its disk.
func (p *Provider) plan(ctx context.Context, b bundle, rec *record, spec providers.Spec, options templateOptions) (*plan, error) {
	pl := &plan{
		id: rec.Container, runtime: p.runtime, bundle: b, mountDir: p.layout.mounts(), rootDir: p.layout.mounts().root(), spec: spec, options: options, incarnation: rec.Incarnation, agent: p.agent,
		layer: b.layer(), lower: []string{p.tree(spec)}, readOnly: true, shared: p.host.Shared, disk: b.disk(),
		user: userid.HostUser, home: defaultHome, env: p.host.Env,
		workdir: spec.WorkingDirectory, cgroupPath: p.cgroups.Path(rec.Container), swapLimit: p.cgroups.LimitsSwap(),
		socket: p.config.Transport == TransportSocket, listen: abstractName,
	}
	if spec.Network == providers.NetworkFull {
		// Abstract socket names belong to the network namespace, here the
		// host's.
		pl.listen = pathName
	}
	rec.Listen = pl.listen
	if spec.Image != "" {
		if err := p.useImage(ctx, pl, rec, spec.Image); err != nil {
			return nil, err
		}
	}
	if err := p.chooseUser(pl, rec); err != nil {
		return nil, err
	}
	var err error
	if pl.etc, err = pl.ownEtc(); err != nil {
		return nil, err
	}
	if pl.workdir == "" {
		pl.workdir = defaultTarget
	}
	if !path.IsAbs(pl.workdir) {
		return nil, fmt.Errorf("working directory %q is not absolute: %w", pl.workdir, providers.ErrInvalid)
	}
	if !p.runtime.GVisor && p.config.Profile == ProfileDefault && p.cgroups.CanDelegate() {
		dir, err := p.cgroups.Delegate(rec.Container, pl.owner.UID, pl.owner.GID)
		if err != nil {
			return nil, err
		}
		pl.cgroup = dir
	}
	rec.NotEnforced = append(rec.NotEnforced, spec.Resources.NotEnforced(p.limits())...)
	return pl, nil
}

// prepareDisk makes the sandbox's layer and, where possible, its disk image.
func (p *Provider) prepareDisk(ctx context.Context, pl *plan) error {
	b := pl.bundle
	if err := os.Mkdir(b.disk(), 0o755); err != nil {
		return err
	}
	if err := pl.makeLayer(); err != nil {
		return fmt.Errorf("make the sandbox's layer: %w", err)
	}
	if pl.spec.Resources.DiskBytes == 0 || p.disks.Unavailable() != "" {
		return nil
	}
	return p.disks.Make(ctx, pl.spec.Resources.DiskBytes, b.image())
}

// mountFor mounts the sandbox's disk and root. It runs in the mount
// namespace from which the runtime is started.
func (p *Provider) mountFor(pl *plan, rec *record) error {
	b := pl.bundle
	if exists(b.image()) {
		dev, err := disk.AttachLoop(b.image())
		if err != nil {
			return err
		}
		// Once it is mounted, the mount holds the device.
		defer func() { _ = dev.Close() }()
		rec.Loop = dev.Name()
		if err := disk.Mount(dev.Name(), b.disk()); err != nil {
			return err
		}
	}
	if err := makeWritableDirs(b.disk(), pl.ownerOf); err != nil {
		return fmt.Errorf("make the writable directories: %w", err)
	}
	if err := makeWorkdir(b.disk(), pl.workdir, pl.owner); err != nil {
		return fmt.Errorf("make the working directory: %w", err)
	}
	switch {
	case pl.mapping != nil:
		if err := pl.mountNamespace(); err != nil {
			return fmt.Errorf("user namespace: %w", err)
		}
	case pl.user.UID != 0:
		if err := pl.mapImage(); err != nil {
			rec.NotEnforced = append(rec.NotEnforced, "image_user: files of the image's user have another owner in the sandbox: "+err.Error())
		}
	}
	return pl.mountRoot()
}
