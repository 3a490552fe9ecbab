package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroups knows this machine's control groups. On a unified tree (v2) limits and
// membership are in one hierarchy. On a hybrid tree the limits are in the
// controllers' own hierarchies (v1), and a v2 tree without controllers stands
// beside them, which is all that finding and killing processes needs.
type cgroups struct {
	parent  string // below the root of each hierarchy
	prefix  string // of this state directory's groups
	unified string // where the v2 tree is mounted; empty: nowhere
	pure    bool   // v2 only
}

func newCgroups(parent, stateDir string) cgroups {
	sum := sha256.Sum256([]byte(stateDir))
	c := cgroups{parent: parent, prefix: hex.EncodeToString(sum[:4]) + "-"}
	switch {
	case isCgroup2(cgroupRoot):
		c.unified, c.pure = cgroupRoot, true
	case isCgroup2(filepath.Join(cgroupRoot, "unified")):
		c.unified = filepath.Join(cgroupRoot, "unified")
	}
	return c
}

func isCgroup2(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// path is the sandbox's cgroup below the root of each hierarchy.
func (c cgroups) path(name string) string { return filepath.Join(c.parent, c.prefix+name) }

// group is the sandbox's cgroup in the v2 tree.
func (c cgroups) group(name string) string { return filepath.Join(c.unified, c.path(name)) }

// hierarchies are the mounted roots.
func (c cgroups) hierarchies() []string {
	if c.pure {
		return []string{cgroupRoot}
	}
	entries, _ := os.ReadDir(cgroupRoot)
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, filepath.Join(cgroupRoot, e.Name()))
		}
	}
	return out
}

// has reports whether a v1 controller is mounted, or a v2 one available.
func (c cgroups) has(controller string) bool {
	if !c.pure {
		_, err := os.Stat(filepath.Join(cgroupRoot, controller))
		return err == nil
	}
	data, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers"))
	if err != nil {
		return false
	}
	for _, name := range strings.Fields(string(data)) {
		if name == controller {
			return true
		}
	}
	return false
}

// swap reports whether swap can be limited.
func (c cgroups) swap() bool {
	if c.pure {
		return c.has("memory")
	}
	_, err := os.Stat(filepath.Join(cgroupRoot, "memory", "memory.memsw.limit_in_bytes"))
	return err == nil
}

// delegatable reports whether the agent can be given a cgroup.
func (c cgroups) delegatable() bool { return c.unified != "" }

const (
	// maxGroupDepth allows two levels below a command's own cgroup.
	maxGroupDepth = 3
	// maxGroups is more than an agent needs for the commands it runs at once.
	maxGroups = 2048
)

// delegate makes the sandbox's v2 cgroup and lets its user make groups below and
// move processes between them. The files that hold limits stay root's. The
// agent begins in the group itself.
func (c cgroups) delegate(name string, uid, gid uint32) (string, error) {
	dir := c.group(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make a cgroup: %w", err)
	}
	// These bound the kernel memory of the cgroups that commands make: it is
	// charged to nobody. The files stay root's.
	for file, limit := range map[string]int{"cgroup.max.depth": maxGroupDepth, "cgroup.max.descendants": maxGroups} {
		if err := os.WriteFile(filepath.Join(dir, file), strconv.AppendInt(nil, int64(limit), 10), 0); err != nil {
			return "", fmt.Errorf("limit a cgroup: %w", err)
		}
	}
	for _, file := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "cgroup.kill"} {
		// cgroup.kill came with Linux 5.14.
		if err := os.Chown(filepath.Join(dir, file), int(uid), int(gid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("delegate a cgroup: %w", err)
		}
	}
	return dir, nil
}

// remove kills what is left in the sandbox's groups and removes them.
func (c cgroups) remove(ctx context.Context, name string) error {
	var errs []error
	for _, root := range c.hierarchies() {
		errs = append(errs, removeGroup(ctx, filepath.Join(root, c.path(name))))
	}
	return errors.Join(errs...)
}

// members lists the processes in the sandbox's groups themselves.
func (c cgroups) members(name string) []int {
	for _, root := range c.hierarchies() {
		if pids := readProcs(filepath.Join(root, c.path(name))); len(pids) > 0 {
			return pids
		}
	}
	return nil
}

func readProcs(dir string) []int {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil
	}
	return parseProcs(data)
}

// parseProcs reads a cgroup.procs file. A process of another pid namespace is 0
// there, and process 1 is nobody's sandbox.
func parseProcs(data []byte) []int {
	var out []int
	for line := range bytes.Lines(data) {
		if pid, err := strconv.Atoi(string(bytes.TrimSuffix(line, []byte("\n")))); err == nil && pid > 1 {
			out = append(out, pid)
		}
	}
	return out
}

// names lists the sandboxes of this state directory that have a cgroup.
func (c cgroups) names() []string {
	seen := map[string]bool{}
	var out []string
	for _, root := range c.hierarchies() {
		entries, err := os.ReadDir(filepath.Join(root, c.parent))
		if err != nil {
			continue
		}
		for _, e := range entries {
			name, ours := c.nameOf(e.Name())
			if ours && e.IsDir() && !seen[name] {
				seen[name] = true
				out = append(out, name)
			}
		}
	}
	return out
}

// nameOf returns the sandbox that a cgroup below the parent belongs to. Other
// programs may make groups there, too.
func (c cgroups) nameOf(group string) (name string, ours bool) {
	name, ours = strings.CutPrefix(group, c.prefix)
	return name, ours && containerName.MatchString(name)
}

// containerName is what a sandbox or one of a pool is called.
var containerName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,126}[a-z0-9])?$`)

// prune removes the parents that nobody uses any more.
func (c cgroups) prune() {
	for _, root := range c.hierarchies() {
		for dir := c.parent; dir != "/"; dir = filepath.Dir(dir) {
			if unix.Rmdir(filepath.Join(root, dir)) != nil {
				break
			}
		}
	}
}

// oomKills returns how often the kernel ended a process of the sandbox for want
// of memory.
func (c cgroups) oomKills(name string) int64 {
	file, key := filepath.Join(cgroupRoot, "memory", c.path(name), "memory.oom_control"), "oom_kill"
	if c.pure {
		file = filepath.Join(c.group(name), "memory.events")
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	return parseCounter(data, key)
}

// parseCounter returns the value of a key in a file of keys and values, or 0.
func parseCounter(data []byte, key string) int64 {
	for line := range bytes.Lines(data) {
		if f := bytes.Fields(line); len(f) == 2 && string(f[0]) == key {
			n, err := strconv.ParseInt(string(f[1]), 10, 64)
			if err != nil {
				return 0
			}
			return max(n, 0)
		}
	}
	return 0
}
