package local

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/userid"
)

// A sandbox with the option root has a user namespace of 65536 ids of the host, in
// which its commands and its agent are user 0.

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

// chooseRange assigns a range of ids to a sandbox with root.
func (p *Provider) chooseRange(pl *plan, rec *record) (err error) {
	if rec.UID, err = p.userIDs.AllocateRange(rec.Container); err != nil {
		return err
	}
	m := userid.MapRange(rec.UID)
	pl.owner = userid.Owner{UID: rec.UID, GID: rec.UID}
	pl.mapping, pl.system = &m, pl.owner
	pl.user.Name, pl.user.Group = "root", "root"
	pl.rootDir = passableRoot
	rec.NotEnforced = append(rec.NotEnforced, fmt.Sprintf("unprivileged: root of a user namespace, with the ids %d to %d of the host", rec.UID, rec.UID+userid.RangeSize-1))
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
