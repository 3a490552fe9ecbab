package local

import (
	"path/filepath"
	"strconv"

	"github.com/sandgate/sandgate/providers/internal/directory"
)

// layout is the state directory and names everything in it.
type layout struct{ directory.Layout }

func (l layout) agents() string  { return l.Path("agent") }
func (l layout) roots() string   { return l.Path("rootfs") }
func (l layout) images() string  { return l.Path("unpacked") }
func (l layout) ledgers() string { return l.Path("ledgers") }
func (l layout) disks() string   { return l.Path("disks") }
func (l layout) runtime() string { return l.Path("runtime") }

// mountDir is where the roots of all sandboxes are mounted, each in a mount
// namespace of its own. They aren't in the sandbox's own directory, which a
// claim moves: the runtime opens the root at every call.
type mountDir string

func (l layout) mounts() mountDir { return mountDir(l.Path("mount")) }

func (m mountDir) path(elem string) string { return filepath.Join(string(m), elem) }
func (m mountDir) root() string            { return m.path("root") }
func (m mountDir) mapped() string          { return m.path("mapped") }
func (m mountDir) empty() string           { return m.path("empty") }
func (m mountDir) mappedTree() string      { return m.path("mapped-tree") }
func (m mountDir) mappedLayer() string     { return m.path("mapped-layer") }
func (m mountDir) mappedShared() string    { return m.path("mapped-shared") }
func (m mountDir) sysfs() string           { return m.path("sysfs") }
func (m mountDir) userNamespace() string   { return m.path("userns") }
func (m mountDir) shared(i int) string     { return m.path("shared-" + strconv.Itoa(i)) }

func (l layout) make() error {
	return l.Make(l.agents(), l.roots(), l.images(), l.disks(), l.runtime(), l.mounts().root(), l.mounts().mapped(), l.mounts().empty())
}

// bundle is the directory of one sandbox and its OCI bundle at once.
type bundle directory.Dir

func (b bundle) path(elem string) string { return directory.Dir(b).Path(elem) }
func (b bundle) config() string          { return b.path("config.json") }
func (b bundle) connect() string         { return b.path("connect.json") }
func (b bundle) pid() string             { return b.path("pid") }
func (b bundle) image() string           { return b.path("disk.ext4") }
func (b bundle) disk() string            { return b.path("disk") }
func (b bundle) layer() string           { return b.path("layer") }

const socketName = "agent.sock"

// diskImages yields the paths at which sandboxes have their disks.
func (l layout) diskImages(yield func(string) bool) {
	for b, err := range l.All() {
		if err == nil && !yield(bundle(b).image()) {
			return
		}
	}
}
