package local

import (
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/containerd/continuity/fs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// imageMeta is what a sandbox needs of an image beside its files.
type imageMeta struct {
	Env     map[string]string `json:"env"`
	Workdir string            `json:"workdir"`
	User    imageUser         `json:"user"`
	Bytes   int64             `json:"bytes"` // of its files
}

// imageUser is the user for which a root file system was made, by its own numbers
// and names. Sandboxes run with other numbers.
type imageUser struct {
	UID    uint32 `json:"uid"` // 0: none
	GID    uint32 `json:"gid"`
	Name   string `json:"name"`
	Group  string `json:"group"`
	Passwd string `json:"passwd"` // content of /etc/passwd
	Groups string `json:"groups"` // content of /etc/group
}

// hostUser is the user of a sandbox that shows the host's userland.
var hostUser = imageUser{Name: sandboxUser, Group: sandboxUser, Passwd: basePasswd, Groups: baseGroup}

// readMeta takes what the image says about processes. It is never run as root.
func readMeta(file *v1.ConfigFile, root string) *imageMeta {
	m := &imageMeta{Env: map[string]string{}, Workdir: path.Clean("/" + file.Config.WorkingDir)}
	if file.Config.WorkingDir == "" || m.Workdir == "/" {
		m.Workdir = ""
	}
	for _, kv := range file.Config.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "HOME" {
			m.Env[k] = v
		}
	}
	m.User = findUser(file.Config.User, readInside(root, "etc/passwd"), readInside(root, "etc/group"))
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

// findUser resolves "user[:group]", where both may be names. Root, and what
// cannot be resolved, is replaced by the usual user.
func findUser(user, passwd, groups string) imageUser {
	u := imageUser{Name: sandboxUser, Group: sandboxUser, Passwd: passwd, Groups: groups}
	if passwd == "" {
		u.Passwd = basePasswd
	}
	if groups == "" {
		u.Groups = baseGroup
	}
	who, group, grouped := strings.Cut(user, ":")
	uid, gid, ok := lookUp(passwd, who, 3)
	if !ok || uid == 0 {
		return u
	}
	if grouped {
		if g, _, ok := lookUp(groups, group, 2); ok {
			gid = g
		}
	}
	if gid == 0 {
		gid = uid
	}
	u.UID, u.GID = uid, gid
	if name := nameOf(passwd, uid); name != "" {
		u.Name, u.Group = name, name
	}
	if name := nameOf(groups, gid); name != "" {
		u.Group = name
	}
	return u
}

// lookUp finds an entry of a passwd or group file by name or number, and returns
// its number and that of another field. A number without an entry stands for
// itself.
func lookUp(file, who string, field int) (id, other uint32, ok bool) {
	if n, err := strconv.ParseUint(who, 10, 31); err == nil {
		id, other, ok = uint32(n), uint32(n), true
	}
	for line := range strings.Lines(file) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) <= field || (f[0] != who && f[2] != who) {
			continue
		}
		n, err1 := strconv.ParseUint(f[2], 10, 31)
		o, err2 := strconv.ParseUint(f[field], 10, 31)
		if err1 == nil && err2 == nil {
			return uint32(n), uint32(o), true
		}
	}
	return id, other, ok
}
