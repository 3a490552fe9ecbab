package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/oci"
	"github.com/sandgate/sandgate/providers/local/userid"
)

// A sandbox with the option root has a user namespace of 65536 ids of the host, in
// which its commands and its agent are user 0. The provider makes the namespace and maps
// the image's files by idmapped mounts; the runtime only joins it.

// passableRoot is where roots of sandboxes with root are mounted. The runtime opens it as
// the root of the user namespace, which may not enter the state directory.
const passableRoot = "/run/sandgate/root"

// optionsOf decodes the options of a sandbox and returns an error for what this machine's
// runtime cannot do.
func (p *Provider) optionsOf(spec providers.Spec) (templateOptions, error) {
	o, err := decodeOptions(spec)
	switch {
	case err != nil || !o.Root:
	case p.runtime.GVisor:
		err = fmt.Errorf("option root: %w by the local provider with gVisor; use runc", providers.ErrUnsupported)
	case spec.Image == "":
		err = fmt.Errorf("option root: without an image the system is the host's, which is read-only: %w", providers.ErrInvalid)
	}
	return o, err
}

// chooseUser assigns the sandbox's ids.
func (p *Provider) chooseUser(pl *plan, rec *record) (err error) {
	if !pl.options.Root {
		rec.UID, err = p.userIDs.Allocate(rec.Container)
		pl.uid, pl.gid, pl.owner = rec.UID, rec.UID, userid.Owner{UID: rec.UID, GID: rec.UID}
		return err
	}
	if rec.UID, err = p.userIDs.AllocateRange(rec.Container); err != nil {
		return err
	}
	pl.owner = userid.Owner{UID: rec.UID, GID: rec.UID}
	pl.user.Name, pl.user.Group = "root", "root"
	pl.rootDir = passableRoot
	rec.NotEnforced = append(rec.NotEnforced, fmt.Sprintf("unprivileged: root of a user namespace, with the ids %d to %d of the host", rec.UID, rec.UID+userid.RangeSize-1))
	return nil
}

// makePassable makes the mount point of roots. Others may only pass through its parent.
func makePassable() error {
	return errors.Join(
		os.MkdirAll(passableRoot, 0o755),
		os.Chmod(filepath.Dir(passableRoot), 0o711),
		os.Chmod(passableRoot, 0o755),
	)
}

// mapRange mounts the user namespace, and maps the image's owners to its ids.
func (p *plan) mapRange() error {
	if err := makePassable(); err != nil {
		return err
	}
	if err := os.WriteFile(p.mountDir.userNamespace(), nil, 0o600); err != nil {
		return err
	}
	if err := userid.MountNamespace(p.owner.UID, p.mountDir.userNamespace()); err != nil {
		return fmt.Errorf("option root: %w", err)
	}
	for _, dir := range []string{p.mountDir.mappedTree(), p.mountDir.sysfs()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if p.ownSysfs() {
		const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY
		if err := unix.Mount("sysfs", p.mountDir.sysfs(), "sysfs", flags, ""); err != nil {
			return fmt.Errorf("option root: mount sysfs: %w", err)
		}
	}
	mapping := userid.MapRange(p.owner.UID)
	at := []string{p.mountDir.mappedTree(), p.mountDir.mapped()}
	for i, layer := range p.lower {
		if err := userid.MountMapped(layer, at[i], mapping); err != nil {
			return fmt.Errorf("option root: %w", err)
		}
	}
	p.lower = at
	return nil
}

// ownLayer gives the layer's files to root of the sandbox, except the agent's
// directories, which hide those of the layer below.
func (p *plan) ownLayer() error {
	for _, dir := range []string{agentState, agentCgroup} {
		if err := os.Mkdir(filepath.Join(p.bundle.layer(), dir), 0o755); err != nil {
			return err
		}
	}
	return filepath.WalkDir(filepath.Join(p.bundle.layer(), "etc"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(p.owner.UID), int(p.owner.GID))
	})
}

// makeRoot gives a process of the agent the capabilities of root. It sets its own
// limits: a runtime that is not the namespace's owner would need CAP_SYS_RESOURCE,
// which root does not have everywhere.
func (p *plan) makeRoot(proc *specs.Process) {
	c := proc.Capabilities
	c.Bounding, c.Effective, c.Permitted = oci.RootCapabilities, oci.RootCapabilities, oci.RootCapabilities
	own := proc.Args[:2:2]
	for _, l := range proc.Rlimits {
		own = append(own, "--rlimit", fmt.Sprintf("%d=%d", rlimitNumbers[l.Type], l.Hard))
	}
	proc.Args, proc.Rlimits = append(own, proc.Args[2:]...), nil
}

var rlimitNumbers = map[string]int{"RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK}
