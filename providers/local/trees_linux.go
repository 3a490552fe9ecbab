package local

import (
	"errors"
	"path/filepath"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/userland"
)

// acquireTrees makes the host's userland and holds its trees.
func (p *Provider) acquireTrees() error {
	h, err := hold(func() (dirs []string, err error) {
		if p.host, err = userland.Build(p.layout.roots(), mountPoints(), defaultHome); err != nil {
			return nil, err
		}
		return []string{p.host.Root, p.host.Skeleton}, nil
	})
	p.held = append(p.held, h...)
	return err
}

// tree returns the generated tree in the root of a new sandbox.
func (p *Provider) tree(spec providers.Spec) string {
	if spec.Image != "" {
		return p.host.Skeleton
	}
	return p.host.Root
}

// treeInUse reports whether the root of a sandbox has, or may have, a tree. A sandbox
// whose record does not name its tree, or cannot be read, may have any.
func (p *Provider) treeInUse(dir string) bool {
	for b, err := range p.layout.All() {
		if err != nil {
			return true
		}
		rec, err := readRecord(b)
		if errors.Is(err, providers.ErrNotFound) && !b.Exists() {
			continue // deleted, or claimed and listed again
		}
		if err != nil || rec.Tree == "" || rec.Tree == filepath.Base(dir) {
			return true
		}
	}
	return false
}
