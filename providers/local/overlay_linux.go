package local

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/disk"
	"github.com/sandgate/sandgate/providers/local/userid"
	"github.com/sandgate/sandgate/providers/local/userland"
)

// A sandbox sees files that it shares with others, such as the host's /usr or an
// unpacked image, through an overlay of its own. An overlay has its own inodes, so
// file watches and locks do not reach other sandboxes.
//
// The root has the sandbox's own layer on top: the files of /etc that differ by
// sandbox, and the agent. Below it, for an image, lies a layer of directories for
// all mount points. A directory of an upper layer hides a link of a lower one, so
// an image can't direct a mount elsewhere.

// makeLayer makes the sandbox's own layer of its root.
func (p *plan) makeLayer() error {
	dir := p.bundle.layer()
	if err := os.MkdirAll(filepath.Join(dir, agentDir), 0o755); err != nil {
		return err
	}
	// A link, so that all sandboxes share the agent's pages in memory.
	if err := os.Link(p.agent, filepath.Join(dir, agentBinary)); err != nil {
		return err
	}
	if err := userland.WriteFiles(dir, p.etc); err != nil || !p.options.Root {
		return err
	}
	return p.ownLayer()
}

// mapImage maps the image's user to the sandbox's user as the owner of files.
func (p *plan) mapImage() error {
	users := userid.MapOwner(userid.Owner{UID: p.user.UID, GID: p.user.GID}, p.owner)
	if err := userid.MountMapped(p.image, p.mountDir.mapped(), users); err != nil {
		return err
	}
	p.lower = []string{p.lower[0], p.mountDir.mapped()}
	return nil
}

// mountRoot mounts the sandbox's root and the directories that it shares with
// others, in the mount namespace from which the runtime is started.
func (p *plan) mountRoot() error {
	root := disk.Overlay{Layers: append([]string{p.layer}, p.lower...)}
	if !p.readOnly {
		root.Upper, root.Work = filepath.Join(p.disk, "upper"), filepath.Join(p.disk, "work")
	}
	if err := root.Mount(p.rootDir); err != nil {
		return err
	}
	for i, dir := range p.shared {
		at := p.mountDir.shared(i)
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		source := dir.Source
		if p.mapping != nil {
			// One over the other: each overlay keeps its own.
			source = p.mountDir.mappedShared()
			if err := userid.MountMappedBy(p.mountDir.userNamespace(), dir.Source, source); err != nil {
				return err
			}
		}
		// An overlay without an upper layer has two lower ones at least.
		if err := (disk.Overlay{Layers: []string{source, p.mountDir.empty()}}).Mount(at); err != nil {
			return err
		}
	}
	return nil
}

// ownEtc returns the files of /etc that are the sandbox's own.
func (p *plan) ownEtc() (map[string]string, error) {
	a := userid.Account{Name: p.user.Name, Group: p.user.Group, UID: p.uid, GID: p.gid, Home: p.home}
	etc := map[string]string{
		"etc/hosts": userland.Hosts, "etc/resolv.conf": "",
		"etc/passwd": a.PasswdFile(p.user.Passwd), "etc/group": a.GroupFile(p.user.Groups),
	}
	if p.spec.Network == providers.NetworkProxy {
		etc["etc/resolv.conf"] = "nameserver 127.0.0.1\n"
	}
	if p.spec.Network != providers.NetworkFull {
		return etc, nil
	}
	for _, name := range []string{"hosts", "resolv.conf"} {
		data, err := os.ReadFile(filepath.Join("/etc", name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		etc["etc/"+name] = string(data)
	}
	return etc, nil
}
