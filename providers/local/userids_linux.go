package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
)

// userIDDir is shared by all servers of the machine. The ids in use end with
// the machine's uptime, as the sandboxes do.
const userIDDir = "/run/sandgate/uids"

// userIDs assigns each sandbox a user id of its own. The kernel counts much by
// user: file watches, queues, pending signals, pages in pipes. The group has the
// same number.
//
// An id in use is a symbolic link named by the number, whose target is the state
// directory and the container. Creating it is the claim.
type userIDs struct {
	dir, state  string
	base, count uint32
}

func newUserIDs(stateDir string, base uint32) (*userIDs, error) {
	if err := os.MkdirAll(userIDDir, 0o700); err != nil {
		return nil, err
	}
	return &userIDs{dir: userIDDir, state: stateDir, base: base, count: uidCount}, nil
}

func (u *userIDs) path(id uint32) string {
	return filepath.Join(u.dir, strconv.FormatUint(uint64(id), 10))
}

// claim returns a free id. It starts at a random one, so that an id is rarely used
// again soon.
func (u *userIDs) claim(container string) (id uint32, err error) {
	start := rand.Uint32N(u.count)
	err = u.locked(func() error {
		for i := range u.count {
			id = u.base + (start+i)%u.count
			err := os.Symlink(filepath.Join(u.state, container), u.path(id))
			if !errors.Is(err, os.ErrExist) {
				return err
			}
		}
		return fmt.Errorf("all %d user ids of sandboxes are in use: %w", u.count, providers.ErrExhausted)
	})
	return id, err
}

// release gives an id back if the container still has it.
func (u *userIDs) release(id uint32, container string) error {
	if id == 0 {
		return nil
	}
	if owner, err := os.Readlink(u.path(id)); err != nil || owner != filepath.Join(u.state, container) {
		return nil
	}
	return os.Remove(u.path(id))
}

// releaseOf gives back the id of a container whose record does not name it.
func (u *userIDs) releaseOf(container string) error {
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

// reclaimIDs claims the ids of running sandboxes again: their links are in a
// directory that does not outlive everything that they do.
func (p *Provider) reclaimIDs() error {
	var errs []error
	for _, dir := range []string{p.layout.pool(), p.layout.sandboxes()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			rec, err := readRecord(bundle(filepath.Join(dir, e.Name())))
			if err != nil || rec.UID == 0 {
				continue // one that cannot be read is recover's
			}
			err = os.Symlink(filepath.Join(p.userIDs.state, rec.container(e.Name())), p.userIDs.path(rec.UID))
			if err != nil && !errors.Is(err, os.ErrExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// locked keeps sweeps and claims of all servers apart.
func (u *userIDs) locked(do func() error) error {
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

// sweep releases the ids of sandboxes that are gone: of this state directory by
// what known returns, and of state directories that don't exist any more.
func (u *userIDs) sweep(known func() (map[string]bool, error)) error {
	return u.locked(func() error {
		// A container has its directory before its id, so what is listed first and
		// not known afterwards is gone.
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

// gone reports that there is certainly no such file. One that cannot be seen from
// here may well be there for another server.
func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

// kernelLimits says what the kernel counts for each sandbox, and what for all.
func (p *Provider) kernelLimits() providers.Enforcement {
	e := providers.Enforcement{Name: "kernel_limits", Enforced: true}
	if p.engine.gvisor {
		e.Detail = "gVisor's own kernel counts for each sandbox"
		return e
	}
	e.Detail = "a user id of its own for each sandbox; counted for the whole machine: open files, terminals (256 each at most), memory of sockets where cgroups are of version 1"
	return e
}

// containers lists the containers for which the state directory has something.
// The pool is read first, because that is the way a claim goes.
func (p *Provider) containers() (map[string]bool, error) {
	known := make(map[string]bool)
	pooled, err := os.ReadDir(p.layout.pool())
	if err != nil {
		return nil, err
	}
	for _, e := range pooled {
		known[e.Name()] = true
	}
	entries, err := os.ReadDir(p.layout.sandboxes())
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		rec, err := readRecord(p.layout.sandbox(e.Name()))
		if err != nil && !errors.Is(err, providers.ErrNotFound) && !errors.Is(err, errCorrupt) {
			return nil, err
		}
		known[e.Name()], known[rec.container(e.Name())] = true, true
	}
	return known, nil
}

// overlaps returns the entries of a file such as /etc/subuid whose ids are also
// those of sandboxes.
func (u *userIDs) overlaps(subordinate string) []string {
	var out []string
	for line := range strings.Lines(subordinate) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 3 {
			continue
		}
		first, err1 := strconv.ParseUint(f[1], 10, 32)
		count, err2 := strconv.ParseUint(f[2], 10, 32)
		if err1 == nil && err2 == nil && first < uint64(u.base)+uint64(u.count) && first+count > uint64(u.base) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// warnOfOverlaps logs the subordinate ids of users that are also sandboxes' ids.
func (p *Provider) warnOfOverlaps(ctx context.Context) {
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, entry := range p.userIDs.overlaps(string(data)) {
			p.log.LogAttrs(ctx, slog.LevelWarn, "the user ids of sandboxes overlap with a user's subordinate ids; choose another --local-uid-base",
				slog.String("file", file), slog.String("entry", entry), slog.Uint64("uid_base", uint64(p.config.UIDBase)))
		}
	}
}
