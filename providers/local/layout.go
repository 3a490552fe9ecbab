package local

import (
	"iter"
	"os"
	"path/filepath"
	"strconv"
)

// layout is the state directory and names everything in it.
type layout string

func (l layout) path(elem ...string) string {
	return filepath.Join(append([]string{string(l)}, elem...)...)
}

func (l layout) locks() string              { return l.path("locks") }
func (l layout) agents() string             { return l.path("agent") }
func (l layout) roots() string              { return l.path("rootfs") }
func (l layout) images() string             { return l.path("unpacked") }
func (l layout) disks() string              { return l.path("disks") }
func (l layout) runtime() string            { return l.path("runtime") }
func (l layout) sandboxes() string          { return l.path("sandboxes") }
func (l layout) sandbox(name string) bundle { return bundle(l.path("sandboxes", name)) }
func (l layout) ledgers() string            { return l.path("ledgers") }
func (l layout) pool() string               { return l.path("pool") }
func (l layout) pooled(id string) bundle    { return bundle(l.path("pool", id)) }

// mountDir is where the roots of all sandboxes are mounted, each in a mount
// namespace of its own. They aren't in the sandbox's own directory, which a
// claim moves: the runtime opens the root at every call.
type mountDir string

func (l layout) mounts() mountDir { return mountDir(l.path("mount")) }

func (m mountDir) path(elem string) string { return filepath.Join(string(m), elem) }
func (m mountDir) root() string            { return m.path("root") }
func (m mountDir) mapped() string          { return m.path("mapped") }
func (m mountDir) empty() string           { return m.path("empty") }
func (m mountDir) shared(i int) string     { return m.path("shared-" + strconv.Itoa(i)) }

// make creates the directories. They hold secrets of sandboxes, so only root
// may enter.
func (l layout) make() error {
	for _, dir := range []string{string(l), l.locks(), l.agents(), l.roots(), l.images(), l.disks(), l.runtime(), l.sandboxes(), l.pool(), l.mounts().root(), l.mounts().mapped(), l.mounts().empty()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return os.Chmod(string(l), 0o700)
}

// bundle is the directory of one sandbox and its OCI bundle at once.
type bundle string

func (b bundle) path(elem string) string { return filepath.Join(string(b), elem) }
func (b bundle) name() string            { return filepath.Base(string(b)) }
func (b bundle) record() string          { return b.path("record.json") }
func (b bundle) config() string          { return b.path("config.json") }
func (b bundle) connect() string         { return b.path("connect.json") }
func (b bundle) pid() string             { return b.path("pid") }
func (b bundle) image() string           { return b.path("disk.ext4") }
func (b bundle) disk() string            { return b.path("disk") }
func (b bundle) layer() string           { return b.path("layer") }

const socketName = "agent.sock"

// bundles yields the directories of all sandboxes. It lists the pool first, and the
// sandboxes only when the loop has done with the pool: claims move directories from
// there to the sandboxes, so that none is missed.
func (l layout) bundles() iter.Seq2[bundle, error] {
	return func(yield func(bundle, error) bool) {
		for _, dir := range []string{l.pool(), l.sandboxes()} {
			entries, err := os.ReadDir(dir)
			if err != nil && !yield("", err) {
				return
			}
			for _, e := range entries {
				if !yield(bundle(filepath.Join(dir, e.Name())), nil) {
					return
				}
			}
		}
	}
}

// diskImages yields the paths at which sandboxes have their disks.
func (l layout) diskImages(yield func(string) bool) {
	for b, err := range l.bundles() {
		if err == nil && !yield(b.image()) {
			return
		}
	}
}
