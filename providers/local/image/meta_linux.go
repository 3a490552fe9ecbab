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

// Meta is what a sandbox needs of an image beside its files.
type Meta struct {
	Env     map[string]string `json:"env"`
	Workdir string            `json:"workdir"`
	User    userid.User       `json:"user"`
	Bytes   int64             `json:"bytes"` // of its files
}

// readMeta takes what the image says about processes. It is never run as root.
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

// maxAccounts bounds the account files that are taken from an image.
const maxAccounts = 256 << 10

// readInside reads a file of an image as the image's own processes would find it.
// It returns nothing for what is missing, large, or not a file.
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

// checkRoot refuses an image in which a link stands for a directory that the
// sandbox's own layer would hide with all that the image has there.
func checkRoot(root string) error {
	for _, name := range []string{"etc", "var"} {
		info, err := os.Lstat(filepath.Join(root, name))
		if err == nil && !info.IsDir() {
			return fmt.Errorf("the image's /%s is not a directory but %v: %w", name, info.Mode().Type(), providers.ErrInvalid)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
