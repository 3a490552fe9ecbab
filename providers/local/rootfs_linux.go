package local

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Where our own things are inside a sandbox.
const (
	inside      = "/.sandgate"
	agentBinary = inside + "/agent"
	agentState  = inside + "/state"
	agentCgroup = inside + "/cgroup"
	pythonDir   = "/opt/python"
	aliasDir    = "/opt/bin"
	systemPath  = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// userland is the host's system directories as a sandbox sees them: a directory
// of mount points, links and a generated /etc, and the directories shown in it.
type userland struct {
	root     string
	shared   []sharedDir
	path     string
	skeleton string // the mount points alone, for images
}

// systemDirs are shown read-only. Everything else of the host stays outside.
var systemDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// buildUserland makes the directory once for each state of the host's /etc.
func buildUserland(l layout) (*userland, error) {
	u := &userland{path: systemPath}
	entries, err := collectEtc()
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{"/opt", aliasDir, "/home", "/var", "/root", "/mnt", "/srv"} {
		entries[dir] = entry{mode: fs.ModeDir | 0o755}
	}
	points := mountPoints()
	maps.Copy(entries, points)
	entries["/var/run"] = entry{mode: fs.ModeSymlink, data: "/run"}
	for _, dir := range systemDirs {
		info, err := os.Lstat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case info.Mode()&fs.ModeSymlink != 0:
			link, err := os.Readlink(dir)
			if err != nil {
				return nil, err
			}
			entries[dir] = entry{mode: fs.ModeSymlink, data: link}
		default:
			entries[dir] = entry{mode: fs.ModeDir | 0o755}
			u.shared = append(u.shared, sharedDir{dir, dir})
			// An overlay shows nothing of what is mounted below its layers.
			below, err := mountsBelow(dir)
			if err != nil {
				return nil, err
			}
			for _, at := range below {
				u.shared = append(u.shared, sharedDir{at, at})
			}
		}
	}
	u.addPython(entries)
	if u.root, err = writeTree(l, entries); err != nil {
		return nil, err
	}
	u.skeleton, err = writeTree(l, points)
	return u, err
}

// mountsBelow returns the directories below dir that something is mounted on,
// parents first.
func mountsBelow(dir string) ([]string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(table)) {
		// proc_pid_mountinfo(5): the fifth field, with octal escapes.
		fields := strings.Fields(line)
		if len(fields) < 5 || !strings.HasPrefix(fields[4], dir+"/") {
			continue
		}
		at := mountEscapes.Replace(fields[4])
		if info, err := os.Stat(at); err == nil && info.IsDir() {
			found = append(found, at)
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

var mountEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountPoints are the directories that something is mounted over.
func mountPoints() map[string]entry {
	out := make(map[string]entry)
	for _, dir := range []string{"/dev", "/proc", "/run", "/sys", agentCgroup} {
		out[dir] = entry{mode: fs.ModeDir | 0o755}
	}
	for _, p := range writableDirs {
		if p.target != "" {
			out[p.target] = entry{mode: fs.ModeDir | 0o755}
		}
	}
	return out
}

// addPython makes python and python3 work where the host has a python. One in
// the system directories is there already; another's prefix is shown read-only.
func (u *userland) addPython(entries map[string]entry) {
	alias := func(name, target string) {
		entries[aliasDir+"/"+name] = entry{mode: fs.ModeSymlink, data: target}
	}
	if !strings.HasSuffix(u.path, aliasDir) {
		u.path += ":" + aliasDir
	}
	for _, dir := range []string{"/usr/local/bin", "/usr/bin"} {
		if _, err := os.Stat(dir + "/python3"); err == nil {
			if _, err := os.Stat(dir + "/python"); err != nil {
				alias("python", dir+"/python3")
			}
			return
		}
	}
	found, err := exec.LookPath("python3")
	if err != nil {
		return
	}
	out, err := exec.Command(found, "-I", "-c", "import sys; print(sys.base_prefix)").Output()
	prefix := strings.TrimSpace(string(out))
	if err != nil || !filepath.IsAbs(prefix) || prefix == "/" {
		return
	}
	entries[pythonDir] = entry{mode: fs.ModeDir | 0o755}
	u.shared = append(u.shared, sharedDir{prefix, pythonDir})
	alias("python3", pythonDir+"/bin/python3")
	alias("python", pythonDir+"/bin/python3")
}

// entry is a file, link or directory of a generated tree.
type entry struct {
	mode fs.FileMode
	data string // content, or a link's target
}

// writeTree makes the tree below the state directory, named by its content, so
// that a running sandbox never sees it change.
func writeTree(l layout, entries map[string]entry) (string, error) {
	paths := make([]string, 0, len(entries))
	for p := range entries {
		paths = append(paths, p)
	}
	sort.Strings(paths)
	sum := sha256.New()
	for _, p := range paths {
		e := entries[p]
		_, _ = fmt.Fprintf(sum, "%q %v %q\n", p, e.mode, e.data)
	}
	root := filepath.Join(l.roots(), hex.EncodeToString(sum.Sum(nil)[:12]))
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	if err := sweepParts(l.roots()); err != nil {
		return "", err
	}
	part, err := os.MkdirTemp(l.roots(), ".part-*")
	if err != nil {
		return "", err
	}
	for _, p := range paths {
		if err := entries[p].write(filepath.Join(part, p)); err != nil {
			return "", errors.Join(err, os.RemoveAll(part))
		}
	}
	if err := openDirs(part); err != nil {
		return "", errors.Join(err, os.RemoveAll(part))
	}
	if err := os.Rename(part, root); err != nil {
		// Another server was faster.
		if _, statErr := os.Stat(root); statErr != nil {
			return "", errors.Join(err, os.RemoveAll(part))
		}
		return root, os.RemoveAll(part)
	}
	return root, nil
}

// partAge is far more than any server needs to write a tree.
const partAge = time.Hour

// sweepParts removes the trees that killed servers left half written.
func sweepParts(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), ".part-") || time.Since(info.ModTime()) < partAge {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (e entry) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	switch {
	case e.mode.IsDir():
		return os.MkdirAll(path, e.mode.Perm())
	case e.mode&fs.ModeSymlink != 0:
		return os.Symlink(e.data, path)
	default:
		if err := os.WriteFile(path, []byte(e.data), e.mode.Perm()); err != nil {
			return err
		}
		return os.Chmod(path, e.mode.Perm())
	}
}

// openDirs lets everybody into the tree's directories, whatever the server's
// umask is.
func openDirs(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return os.Chmod(path, 0o755)
	})
}

func readOnly(source, target string) specs.Mount {
	return specs.Mount{
		Type: "bind", Source: source, Destination: target,
		Options: []string{"rbind", "ro", "nosuid", "nodev", "rprivate"},
	}
}
