package userid

import (
	"strconv"
	"strings"
)

// User is the user for which a root file system was made, by its own numbers
// and names. Sandboxes run with other numbers.
type User struct {
	UID    uint32 `json:"uid"` // 0: none
	GID    uint32 `json:"gid"`
	Name   string `json:"name"`
	Group  string `json:"group"`
	Passwd string `json:"passwd"` // content of /etc/passwd
	Groups string `json:"groups"` // content of /etc/group
}

// defaultName is the name of a sandbox's user and group where the image states
// none.
const defaultName = "sandbox"

// HostUser is the user of a sandbox that shows the host's userland.
var HostUser = User{Name: defaultName, Group: defaultName, Passwd: hostPasswd, Groups: hostGroup}

// FindUser resolves "user[:group]", names or numbers. The default user replaces
// root and a user that can't be resolved.
func FindUser(user, passwd, groups string) User {
	u := User{Name: defaultName, Group: defaultName, Passwd: passwd, Groups: groups}
	if passwd == "" {
		u.Passwd = hostPasswd
	}
	if groups == "" {
		u.Groups = hostGroup
	}
	name, group, grouped := strings.Cut(user, ":")
	uid, gid, ok := lookUp(passwd, name, 3)
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
	if found := nameOf(passwd, uid); found != "" {
		u.Name, u.Group = found, found
	}
	if found := nameOf(groups, gid); found != "" {
		u.Group = found
	}
	return u
}

// lookUp finds an entry of a passwd or group file by name or number, and
// returns its number and that of another field. A number without an entry is
// returned as it is.
func lookUp(file, entry string, field int) (id, other uint32, ok bool) {
	if n, err := strconv.ParseUint(entry, 10, 31); err == nil {
		id, other, ok = uint32(n), uint32(n), true
	}
	for line := range strings.Lines(file) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) <= field || (f[0] != entry && f[2] != entry) {
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
