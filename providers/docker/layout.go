package docker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// layout is the state directory and names everything in it.
type layout string

func (l layout) path(elem ...string) string {
	return filepath.Join(append([]string{string(l)}, elem...)...)
}

func (l layout) id() string               { return l.path("id") }
func (l layout) locks() string            { return l.path("locks") }
func (l layout) probe() string            { return l.path("probe") }
func (l layout) sandboxes() string        { return l.path("sandboxes") }
func (l layout) sandbox(name string) home { return home(l.path("sandboxes", name)) }
func (l layout) ledgers() string          { return l.path("ledgers") }
func (l layout) pool() string             { return l.path("pool") }
func (l layout) pooled(id string) home    { return home(l.path("pool", id)) }

// make creates the directories. A sandbox's user can write to its socket's
// directory, so other users of this machine must not get there.
func (l layout) make() error {
	for _, dir := range []string{string(l), l.locks(), l.probe(), l.sandboxes(), l.pool()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return os.Chmod(string(l), 0o700)
}

// home is the directory of one sandbox.
type home string

func (h home) record() string { return filepath.Join(string(h), "record.json") }

// socket is the directory of the agent's socket. The container has it as a bind
// mount, which a rename does not change.
func (h home) socket() string { return filepath.Join(string(h), "socket") }

func (h home) exists() bool {
	_, err := os.Lstat(string(h))
	return !errors.Is(err, fs.ErrNotExist)
}

const socketName = "agent.sock"

// names returns the names in a directory, in order.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = e.Name()
	}
	return out, nil
}
