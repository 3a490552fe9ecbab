package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers/local/userid"
)

// The provider makes the user namespace of a sandbox and maps the files of its root by
// idmapped mounts; the runtime only joins it. A sandbox with the option root has the ids
// of its range there. Any other keeps its one id, the same inside and on the host. Root
// inside is another id of its own, with which only the runtime starts it: the kernel
// counts keys against it.

// passableRoot is where roots of sandboxes with a user namespace are mounted. The runtime
// opens it as the root of the namespace, which may not enter the state directory.
const passableRoot = "/run/sandgate/root"

// Why sandboxes without the option root have no user namespace.
const (
	noNamespaceByGVisor  = "gVisor has its own users"
	noNamespaceByRuntime = "the runtime has no idmapped mounts (runc 1.2 or later)"
	noNamespaceByMachine = "no sandbox starts with one on this machine; the log has the reason"
)

// findNamespaces decides by the runtime whether new sandboxes get a user namespace.
func (p *Provider) findNamespaces(ctx context.Context) {
	reason := noNamespaceByGVisor
	if !p.runtime.GVisor {
		if p.runtime.FindFeatures(ctx); p.runtime.MapsMounts {
			reason = ""
		} else {
			reason = noNamespaceByRuntime
		}
	}
	p.noNamespace.Store(reason)
}

// usesNamespaces reports whether a new sandbox without the option root gets a user
// namespace.
func (p *Provider) usesNamespaces() bool { return p.noNamespace.Load() == "" }

// chooseUser assigns the sandbox's ids.
func (p *Provider) chooseUser(pl *plan, rec *record) (err error) {
	if pl.options.Root {
		return p.chooseRange(pl, rec)
	}
	rec.UID, err = p.userIDs.Allocate(rec.Container)
	pl.uid, pl.gid, pl.owner = rec.UID, rec.UID, userid.Owner{UID: rec.UID, GID: rec.UID}
	if rec.Namespace {
		m := userid.MapSystem(pl.owner, pl.owner)
		pl.mapping, pl.system = &m, userid.NamespaceRoot(pl.owner)
		pl.rootDir = passableRoot
	}
	return err
}

// makePassable makes the mount point of roots. Others may only pass through its parent.
func makePassable() error {
	return errors.Join(
		os.MkdirAll(passableRoot, 0o755),
		os.Chmod(filepath.Dir(passableRoot), 0o711),
		os.Chmod(passableRoot, 0o755),
	)
}

// namespace is a user namespace that was made, or why it could not be.
type namespace struct {
	file *os.File
	err  error
}

// startNamespace makes the user namespace, which takes some milliseconds, beside the disk.
// The caller must call the function that it returns when the sandbox is started or not.
func (p *plan) startNamespace() (release func()) {
	if p.mapping == nil {
		return func() {}
	}
	made := make(chan namespace, 1)
	p.namespace = made
	go func() {
		defer close(made)
		file, err := userid.OpenNamespace(p.owner.UID, *p.mapping)
		made <- namespace{file, err}
	}()
	return func() {
		if unused := <-made; unused.file != nil {
			_ = unused.file.Close()
		}
	}
}

// mountNamespace mounts the user namespace, and the layers of the root so that their
// owners are ids of it.
func (p *plan) mountNamespace() error {
	if err := makePassable(); err != nil {
		return err
	}
	path := p.mountDir.userNamespace()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	made := <-p.namespace
	if made.err != nil {
		return fmt.Errorf("make it: %w", made.err)
	}
	err := userid.MountNamespace(made.file, path)
	if err := errors.Join(err, made.file.Close()); err != nil {
		return err
	}
	for _, dir := range []string{p.mountDir.mappedTree(), p.mountDir.mappedLayer(), p.mountDir.mappedShared(), p.mountDir.sysfs()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if p.ownSysfs() {
		const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY
		if err := unix.Mount("sysfs", p.mountDir.sysfs(), "sysfs", flags, ""); err != nil {
			return fmt.Errorf("mount sysfs: %w", err)
		}
	}
	at := []string{p.mountDir.mappedTree(), p.mountDir.mapped()}[:len(p.lower)]
	for i, layer := range p.lower {
		if err := p.mountMapped(layer, at[i]); err != nil {
			return err
		}
	}
	p.lower = at
	if p.options.Root {
		return nil
	}
	p.layer = p.mountDir.mappedLayer()
	return userid.MountMappedBy(path, p.bundle.layer(), p.layer)
}

// mountMapped mounts a layer of the root with owners of the user namespace.
func (p *plan) mountMapped(layer, at string) error {
	if !p.options.Root && layer == p.image && p.user.UID != 0 {
		return userid.MountMapped(layer, at, userid.MapSystem(userid.Owner{UID: p.user.UID, GID: p.user.GID}, p.owner))
	}
	return userid.MountMappedBy(p.mountDir.userNamespace(), layer, at)
}

// limitItself has a process of the agent set its own limits: a runtime that is not the
// user namespace's owner would need CAP_SYS_RESOURCE, which root does not have everywhere.
func limitItself(proc *specs.Process) {
	own := proc.Args[:2:2]
	for _, l := range proc.Rlimits {
		own = append(own, "--rlimit", fmt.Sprintf("%d=%d", rlimitNumbers[l.Type], l.Hard))
	}
	proc.Args, proc.Rlimits = append(own, proc.Args[2:]...), nil
}

var rlimitNumbers = map[string]int{"RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK}
