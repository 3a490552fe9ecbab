package local

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/sandgate/sandgate/providers/local/userid"
)

// writableDir is a writable directory of a sandbox, kept on its disk.
type writableDir struct {
	dir    string // below the disk's root
	target string // inside the sandbox; empty: not mounted as it is
	mode   fs.FileMode
	owned  bool // by the sandbox's user, else by its root
}

// writableDirs are the writable directories. Names must not change while sandboxes
// of an older version may run.
var writableDirs = []writableDir{
	{dir: "workspace", target: "/workspace", mode: 0o755, owned: true},
	{dir: "home", target: "/home/sandbox", mode: 0o750, owned: true},
	{dir: "tool-results", target: "/large_tool_results", mode: 0o755, owned: true},
	{dir: "history", target: "/conversation_history", mode: 0o755, owned: true},
	{dir: "tmp", target: "/tmp", mode: 0o777 | fs.ModeSticky},
	{dir: "var-tmp", target: "/var/tmp", mode: 0o777 | fs.ModeSticky},
	{dir: "state", target: agentState, mode: 0o700, owned: true},
	{dir: "upper", mode: 0o755},
	{dir: "work", mode: 0o700},
}

// ownerOf returns the owner of a writable directory. Where commands are root, that of the
// upper layer stays the host's, so that no file can be made in "/" beside the agent's
// directories, which the Landlock domain of commands relies on.
func (p *plan) ownerOf(w writableDir) userid.Owner {
	switch {
	case w.owned:
		return p.owner
	case p.options.Root && w.target == "":
		return userid.Owner{}
	default:
		return p.system
	}
}

// makeWritableDirs makes the writable directories on a disk.
func makeWritableDirs(root string, ownerOf func(writableDir) userid.Owner) error {
	for _, p := range writableDirs {
		dir := filepath.Join(root, p.dir)
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Chmod(dir, p.mode); err != nil {
			return err
		}
		owner := ownerOf(p)
		if err := os.Chown(dir, int(owner.UID), int(owner.GID)); err != nil {
			return err
		}
	}
	return nil
}

// makeWorkdir makes the working directory if it is below a writable directory
// and does not exist yet.
func makeWorkdir(disk, workdir string, owner userid.Owner) error {
	for _, w := range writableDirs {
		rest, below := strings.CutPrefix(path.Clean(workdir), w.target+"/")
		if w.target == "" || !below {
			continue
		}
		dir := filepath.Join(disk, w.dir)
		for _, part := range strings.Split(rest, "/") {
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			if err := os.Chown(dir, int(owner.UID), int(owner.GID)); err != nil {
				return err
			}
		}
	}
	return nil
}

// mountPoints are the directories that something is mounted over.
func mountPoints() []string {
	out := []string{"/dev", "/proc", "/run", "/sys", agentCgroup}
	for _, p := range writableDirs {
		if p.target != "" {
			out = append(out, p.target)
		}
	}
	return out
}
