// Package userland shows sandboxes the host's programs beside an /etc of their own.
package userland

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Path is the default of the environment variable PATH.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const (
	pythonDir = "/opt/python"
	aliasDir  = "/opt/bin"
)

// Userland is the host's system directories as a sandbox sees them.
type Userland struct {
	Root     string // a directory of mount points, links and a generated /etc
	Shared   []SharedDir
	path     string // to the programs of the host
	Env      map[string]string
	Skeleton string // a directory of mount points alone, for images
}

// SharedDir is a directory of the host that sandboxes see, read-only.
type SharedDir struct{ Source, Target string }

// systemDirs are shown read-only, and no other directory of the host.
var systemDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// Build makes the userland below a directory, once for each state of the host's
// /etc. mountPoints are the directories over which something is mounted, home is one of
// them or below one.
func Build(treeDir string, mountPoints []string, home string) (*Userland, error) {
	u := &Userland{path: Path}
	entries, err := collectEtc()
	if err != nil {
		return nil, err
	}
	for _, made := range []string{"/opt", aliasDir, "/home", "/var", "/root", "/mnt", "/srv"} {
		entries[made] = entry{mode: fs.ModeDir | 0o755}
	}
	points := make(map[string]entry, len(mountPoints))
	for _, at := range mountPoints {
		points[at] = entry{mode: fs.ModeDir | 0o755}
	}
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
			u.Shared = append(u.Shared, SharedDir{dir, dir})
			// An overlay shows nothing of what is mounted below its layers.
			below, err := mountsBelow(dir)
			if err != nil {
				return nil, err
			}
			for _, at := range below {
				u.Shared = append(u.Shared, SharedDir{at, at})
			}
		}
	}
	u.addPython(entries)
	u.Env = installers(home, u.path)
	if u.Root, err = writeTree(treeDir, entries); err != nil {
		return nil, err
	}
	u.Skeleton, err = writeTree(treeDir, points)
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

// addPython provides python and python3 if the host has a Python. One in the
// system directories is shown already; the prefix of another is shown
// read-only.
func (u *Userland) addPython(entries map[string]entry) {
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
	u.Shared = append(u.Shared, SharedDir{prefix, pythonDir})
	alias("python3", pythonDir+"/bin/python3")
	alias("python", pythonDir+"/bin/python3")
}
