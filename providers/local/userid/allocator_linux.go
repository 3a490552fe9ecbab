package userid

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
)

// sharedDir is shared by all servers of the machine. A reboot clears it, as it
// ends the sandboxes.
const sharedDir = "/run/sandgate/uids"

// Allocator assigns each sandbox a user id of its own. The kernel counts much by
// user: file watches, queues, pending signals, pages in pipes. The group has the
// same number.
//
// A sandbox with root gets a range of ids, which its first id stands for.
//
// An id in use is a symbolic link named by the number, whose target is the
// state directory and the container. Creating it is the allocation.
type Allocator struct {
	dir, state  string
	base, count uint32
	ranges      uint32
}

// New returns the allocator of a state directory. Ids begin at base.
func New(stateDir string, base uint32) (*Allocator, error) {
	if err := os.MkdirAll(sharedDir, 0o700); err != nil {
		return nil, err
	}
	return &Allocator{dir: sharedDir, state: stateDir, base: base, count: Count, ranges: Ranges}, nil
}

func (u *Allocator) path(id uint32) string {
	return filepath.Join(u.dir, strconv.FormatUint(uint64(id), 10))
}

// Allocate returns a free id. It starts at a random one, so that an id is rarely used
// again soon.
func (u *Allocator) Allocate(container string) (id uint32, err error) {
	id, err = u.first(container, u.base, u.count, 1)
	if errors.Is(err, errAllInUse) {
		err = fmt.Errorf("all %d user ids of sandboxes are in use: %w", u.count, providers.ErrExhausted)
	}
	return id, err
}

// AllocateRange returns the first id of a free range of RangeSize ids.
func (u *Allocator) AllocateRange(container string) (id uint32, err error) {
	id, err = u.first(container, RangeBase, u.ranges, RangeSize)
	if errors.Is(err, errAllInUse) {
		err = fmt.Errorf("all %d ranges of ids of sandboxes with root are in use: %w", u.ranges, providers.ErrExhausted)
	}
	return id, err
}

var errAllInUse = errors.New("all are in use")

// first allocates one of count ids that are step apart.
func (u *Allocator) first(container string, base, count, step uint32) (id uint32, err error) {
	start := rand.Uint32N(count)
	err = u.locked(func() error {
		for i := range count {
			id = base + (start+i)%count*step
			err := os.Symlink(filepath.Join(u.state, container), u.path(id))
			if !errors.Is(err, os.ErrExist) {
				return err
			}
		}
		return errAllInUse
	})
	return id, err
}

// Release releases an id if the container still has it.
func (u *Allocator) Release(id uint32, container string) error {
	if id == 0 {
		return nil
	}
	if owner, err := os.Readlink(u.path(id)); err != nil || owner != filepath.Join(u.state, container) {
		return nil
	}
	return os.Remove(u.path(id))
}

// ReleaseOf releases the id of a container whose record does not name it.
func (u *Allocator) ReleaseOf(container string) error {
	entries, err := os.ReadDir(u.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(u.dir, e.Name())
		if owner, err := os.Readlink(path); err == nil && owner == filepath.Join(u.state, container) {
			return os.Remove(path)
		}
	}
	return nil
}

// Reclaim marks an id as the container's again. The links may be lost before
// the sandboxes are.
func (u *Allocator) Reclaim(id uint32, container string) error {
	err := os.Symlink(filepath.Join(u.state, container), u.path(id))
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// locked runs do while no other server allocates or sweeps ids.
func (u *Allocator) locked(do func() error) error {
	dir, err := os.Open(u.dir)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", u.dir, err)
	}
	return do()
}

// Sweep releases the ids of removed sandboxes: those of this state directory
// that known does not return, and those of state directories that no longer
// exist.
func (u *Allocator) Sweep(known func() (map[string]bool, error)) error {
	return u.locked(func() error {
		// A container has its directory before its id, so an id listed first
		// whose container is unknown afterwards is unused.
		entries, err := os.ReadDir(u.dir)
		if err != nil {
			return err
		}
		alive, err := known()
		if err != nil {
			return err
		}
		for _, e := range entries {
			path := filepath.Join(u.dir, e.Name())
			owner, err := os.Readlink(path)
			if err != nil {
				continue
			}
			state, container := filepath.Split(owner)
			if state = filepath.Clean(state); state == u.state && alive[container] || state != u.state && !gone(state) {
				continue
			}
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

// gone reports that a file certainly does not exist. One that is not accessible
// from here may exist for another server.
func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

// Overlaps returns the entries of a file such as /etc/subuid whose ids are also
// those of sandboxes.
func (u *Allocator) Overlaps(subordinate string) []string {
	var out []string
	for line := range strings.Lines(subordinate) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 3 {
			continue
		}
		first, err1 := strconv.ParseUint(f[1], 10, 32)
		count, err2 := strconv.ParseUint(f[2], 10, 32)
		within := func(from, to uint64) bool { return first < to && first+count > from }
		if err1 == nil && err2 == nil && (within(uint64(u.base), uint64(u.base)+uint64(u.count)) || within(RangeBase, NamespaceRootBase+Count) || within(SystemBase, SystemBase+Unmapped)) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}
