package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sandgate/sandgate/providers/local/userid"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
)

// A sandbox sees files that it shares with others, such as the host's /usr or an
// unpacked image, through an overlay of its own. An overlay has its own inodes, so
// file watches and locks do not reach other sandboxes.
//
// The root has the sandbox's own layer on top: the files of /etc that differ by
// sandbox, and the agent. Below it, for an image, lies a layer of directories for
// all mount points. A directory of an upper layer hides a link of a lower one, so
// an image can't direct a mount elsewhere.

// sharedDir is a directory of the host that sandboxes see, read-only.
type sharedDir struct{ source, target string }

// overlay is one overlay mount. Without upper it is read-only.
type overlay struct {
	layers      []string // the first is on top
	upper, work string
}

// mount mounts the overlay at a directory. The mount table, which every process
// of the sandbox can read, shows numbers of descriptors in place of host paths.
func (o overlay) mount(at string) error {
	var open []*os.File
	defer func() {
		for _, f := range open {
			_ = f.Close()
		}
	}()
	handle := func(dir string) (string, error) {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", fmt.Errorf("open %s: %w", dir, err)
		}
		open = append(open, os.NewFile(uintptr(fd), dir))
		return "/proc/self/fd/" + strconv.Itoa(fd), nil
	}
	layers := make([]string, 0, len(o.layers))
	for _, dir := range o.layers {
		name, err := handle(dir)
		if err != nil {
			return err
		}
		layers = append(layers, name)
	}
	data := "lowerdir=" + strings.Join(layers, ":")
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if o.upper == "" {
		flags |= unix.MS_RDONLY
	} else {
		upper, err := handle(o.upper)
		if err != nil {
			return err
		}
		work, err := handle(o.work)
		if err != nil {
			return err
		}
		data += ",upperdir=" + upper + ",workdir=" + work
	}
	if err := unix.Mount("overlay", at, "overlay", flags, data); err != nil {
		return fmt.Errorf("mount an overlay of %s: %w", strings.Join(o.layers, ", "), err)
	}
	return nil
}

// makeLayer makes the sandbox's own layer of its root.
func (p *plan) makeLayer() error {
	dir := p.bundle.layer()
	if err := os.MkdirAll(filepath.Join(dir, inside), 0o755); err != nil {
		return err
	}
	for name, data := range p.etc {
		if err := (entry{mode: 0o644, data: data}).write(filepath.Join(dir, "etc", name)); err != nil {
			return err
		}
	}
	// A link, so that all sandboxes share the agent's pages in memory.
	if err := os.Link(p.agent, filepath.Join(dir, agentBinary)); err != nil {
		return err
	}
	return openDirs(dir)
}

// mapImage has the sandbox's user own what the image's user owns.
func (p *plan) mapImage() error {
	if err := userid.MountMapped(p.image, p.mountDir.mapped(), userid.Owner{UID: p.user.UID, GID: p.user.GID}, userid.Owner{UID: p.uid, GID: p.gid}); err != nil {
		return err
	}
	p.lower = []string{p.lower[0], p.mountDir.mapped()}
	return nil
}

// mountRoot mounts the sandbox's root and what it shares with others, in the
// mount namespace from which the runtime is started.
func (p *plan) mountRoot() error {
	root := overlay{layers: append([]string{p.bundle.layer()}, p.lower...)}
	if !p.readOnly {
		root.upper, root.work = filepath.Join(p.disk, "upper"), filepath.Join(p.disk, "work")
	}
	if err := root.mount(p.mountDir.root()); err != nil {
		return err
	}
	for i, dir := range p.shared {
		at := p.mountDir.shared(i)
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		// An overlay without an upper layer has two lower ones at least.
		if err := (overlay{layers: []string{dir.source, p.mountDir.empty()}}).mount(at); err != nil {
			return err
		}
	}
	return nil
}

// ownEtc returns the files of /etc that are the sandbox's own.
func (p *plan) ownEtc() (map[string]string, error) {
	a := userid.Account{Name: p.user.Name, Group: p.user.Group, UID: p.uid, GID: p.gid, Home: p.home}
	etc := map[string]string{
		"hosts": hostsFile, "resolv.conf": "",
		"passwd": a.PasswdFile(p.user.Passwd), "group": a.GroupFile(p.user.Groups),
	}
	if p.spec.Network != providers.NetworkFull {
		return etc, nil
	}
	for _, name := range []string{"hosts", "resolv.conf"} {
		data, err := os.ReadFile(filepath.Join("/etc", name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		etc[name] = string(data)
	}
	return etc, nil
}
