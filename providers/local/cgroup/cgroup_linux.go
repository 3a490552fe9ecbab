// Package cgroup limits sandboxes and ends their processes by control groups, of
// version 2 alone or of version 1 with a version 2 tree beside it.
package cgroup

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

const root = "/sys/fs/cgroup"

// Groups are the control groups of this machine. On a unified tree (v2) limits
// and membership are in one hierarchy. On a hybrid tree the limits are in the
// controllers' own hierarchies (v1), and a v2 tree without controllers stands
// beside them, which suffices to find and kill processes.
type Groups struct {
	parent  string // below the root of each hierarchy
	prefix  string // of this state directory's groups
	unified string // where the v2 tree is mounted; empty: nowhere
	v2Only  bool   // no v1 hierarchies
}

// New finds the hierarchies. Sandboxes get their cgroups below parent, under
// names that differ by state directory.
func New(parent, stateDir string) Groups {
	sum := sha256.Sum256([]byte(stateDir))
	g := Groups{parent: parent, prefix: hex.EncodeToString(sum[:4]) + "-"}
	switch {
	case isCgroup2(root):
		g.unified, g.v2Only = root, true
	case isCgroup2(filepath.Join(root, "unified")):
		g.unified = filepath.Join(root, "unified")
	}
	return g
}

func isCgroup2(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// Path is the sandbox's cgroup below the root of each hierarchy.
func (g Groups) Path(name string) string { return filepath.Join(g.parent, g.prefix+name) }

// V2Dir is the directory of the sandbox's cgroup in the v2 tree.
func (g Groups) V2Dir(name string) string { return filepath.Join(g.unified, g.Path(name)) }

// hierarchies are the mounted roots.
func (g Groups) hierarchies() []string {
	if g.v2Only {
		return []string{root}
	}
	entries, _ := os.ReadDir(root)
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, filepath.Join(root, e.Name()))
		}
	}
	return out
}

// Has reports whether a v1 controller is mounted, or a v2 one available.
func (g Groups) Has(controller string) bool {
	if !g.v2Only {
		_, err := os.Stat(filepath.Join(root, controller))
		return err == nil
	}
	data, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
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

// LimitsSwap reports whether swap can be limited.
func (g Groups) LimitsSwap() bool {
	if g.v2Only {
		return g.Has("memory")
	}
	_, err := os.Stat(filepath.Join(root, "memory", "memory.memsw.limit_in_bytes"))
	return err == nil
}

// CanDelegate reports whether the agent can be given a cgroup.
func (g Groups) CanDelegate() bool { return g.unified != "" }

const (
	// maxGroupDepth allows two levels below a command's own cgroup.
	maxGroupDepth = 3
	// maxGroups is more than an agent needs for the commands it runs at once.
	maxGroups = 2048
)

// Delegate makes the sandbox's v2 cgroup and lets its user make groups below and
// move processes between them. The files that hold limits stay root's. The
// agent begins in the group itself.
func (g Groups) Delegate(name string, uid, gid uint32) (string, error) {
	dir := g.V2Dir(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make a cgroup: %w", err)
	}
	// These limit the kernel memory of the cgroups that commands make, which is
	// not charged to any cgroup. The files stay root's.
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

// Remove kills the processes left in the sandbox's groups and removes the
// groups.
func (g Groups) Remove(ctx context.Context, name string) error {
	var errs []error
	for _, hierarchy := range g.hierarchies() {
		errs = append(errs, removeGroup(ctx, filepath.Join(hierarchy, g.Path(name))))
	}
	return errors.Join(errs...)
}

// Members lists the processes in the sandbox's groups themselves.
func (g Groups) Members(name string) []int {
	for _, hierarchy := range g.hierarchies() {
		if pids := readProcs(filepath.Join(hierarchy, g.Path(name))); len(pids) > 0 {
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

// parseProcs reads a cgroup.procs file. A process of another pid namespace is
// listed as 0, and process 1 is never in a sandbox.
func parseProcs(data []byte) []int {
	var out []int
	for line := range bytes.Lines(data) {
		if pid, err := strconv.Atoi(string(bytes.TrimSuffix(line, []byte("\n")))); err == nil && pid > 1 {
			out = append(out, pid)
		}
	}
	return out
}

// Names lists the sandboxes of this state directory that have a cgroup.
func (g Groups) Names() []string {
	seen := map[string]bool{}
	var out []string
	for _, hierarchy := range g.hierarchies() {
		entries, err := os.ReadDir(filepath.Join(hierarchy, g.parent))
		if err != nil {
			continue
		}
		for _, e := range entries {
			name, own := g.nameOf(e.Name())
			if own && e.IsDir() && !seen[name] {
				seen[name] = true
				out = append(out, name)
			}
		}
	}
	return out
}

// nameOf returns the sandbox of a cgroup below the parent. Other programs may
// make cgroups there, too.
func (g Groups) nameOf(group string) (name string, own bool) {
	name, own = strings.CutPrefix(group, g.prefix)
	return name, own && containerName.MatchString(name)
}

// containerName matches the names of sandboxes, pooled ones included.
var containerName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,126}[a-z0-9])?$`)

// Limit reads a sandbox's limit of a controller from the file of version 1 or 2.
func (g Groups) Limit(name, controller, v1, v2 string) (string, error) {
	file := filepath.Join(root, controller, g.Path(name), v1)
	if g.v2Only {
		file = filepath.Join(g.V2Dir(name), v2)
	}
	data, err := os.ReadFile(file)
	limit, _, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
	return limit, err
}

// Prune removes unused parents.
func (g Groups) Prune() {
	for _, hierarchy := range g.hierarchies() {
		for dir := g.parent; dir != "/"; dir = filepath.Dir(dir) {
			if unix.Rmdir(filepath.Join(hierarchy, dir)) != nil {
				break
			}
		}
	}
}

// OOMKills returns how many processes of the sandbox the kernel killed because
// memory ran out.
func (g Groups) OOMKills(name string) int64 {
	file, key := filepath.Join(root, "memory", g.Path(name), "memory.oom_control"), "oom_kill"
	if g.v2Only {
		file = filepath.Join(g.V2Dir(name), "memory.events")
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
