package image

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/continuity/fs"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/userid"
)

// Meta is an image's metadata that a sandbox needs.
type Meta struct {
	Env     map[string]string `json:"env"`
	Workdir string            `json:"workdir"`
	User    userid.User       `json:"user"`
	Bytes   int64             `json:"bytes"` // of its files
}

// readMeta returns the image's settings for processes, which never run as root.
func readMeta(file *v1.ConfigFile, root string) *Meta {
	m := &Meta{Env: map[string]string{}, Workdir: path.Clean("/" + file.Config.WorkingDir)}
	if file.Config.WorkingDir == "" || m.Workdir == "/" {
		m.Workdir = ""
	}
	for _, kv := range file.Config.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "HOME" {
			m.Env[k] = v
		}
	}
	m.User = userid.FindUser(file.Config.User, readInside(root, "etc/passwd"), readInside(root, "etc/group"))
	return m
}

// maxAccounts is the maximum size of an image's account files.
const maxAccounts = 256 << 10

// readInside reads a file of an image at the path that the image's own
// processes see. It returns "" if the file is missing, too large or not
// regular.
func readInside(root, name string) string {
	at, err := fs.RootPath(root, name)
	if err != nil {
		return ""
	}
	info, err := os.Lstat(at)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxAccounts {
		return ""
	}
	data, err := os.ReadFile(at)
	if err != nil {
		return ""
	}
	return string(data)
}

// checkRoot rejects an image with a link in place of a directory that the
// sandbox's own layer also has: the layer would hide all that the image has
// there.
func checkRoot(root string) error {
	for _, name := range []string{"etc", "var"} {
		info, err := os.Lstat(filepath.Join(root, name))
		if err == nil && !info.IsDir() {
			return fmt.Errorf("the image's /%s is not a directory but %v: %w", name, info.Mode().Type(), providers.ErrStartFailed)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
