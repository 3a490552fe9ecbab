package userland

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// entry is a file, link or directory of a generated tree.
type entry struct {
	mode fs.FileMode
	data string // content, or a link's target
}

// writeTree makes the tree below a directory, named by its content, so
// that a running sandbox never sees it change.
func writeTree(dir string, entries map[string]entry) (string, error) {
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
	root := filepath.Join(dir, hex.EncodeToString(sum.Sum(nil)[:12]))
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	if err := sweepParts(dir); err != nil {
		return "", err
	}
	part, err := os.MkdirTemp(dir, ".part-*")
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
		// Another server made it first.
		if _, statErr := os.Stat(root); statErr != nil {
			return "", errors.Join(err, os.RemoveAll(part))
		}
		return root, os.RemoveAll(part)
	}
	return root, nil
}

// partAge is far more than a server needs to write a tree.
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

// openDirs lets every user into the tree's directories, whatever the server's
// umask is.
func openDirs(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return os.Chmod(path, 0o755)
	})
}

// WriteFiles writes files below a directory. Every user may enter and read it.
func WriteFiles(dir string, files map[string]string) error {
	for name, data := range files {
		if err := (entry{mode: 0o644, data: data}).write(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return openDirs(dir)
}
