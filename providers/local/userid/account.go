package userid

import (
	"fmt"
	"strconv"
	"strings"
)

// Account is the user inside a sandbox, as /etc/passwd and /etc/group name it.
type Account struct {
	Name, Group string
	UID, GID    uint32
	Home        string
}

// The accounts of a sandbox that shows the host's userland.
const (
	hostPasswd = "root:x:0:0:root:/root:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	hostGroup  = "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"
)

// PasswdFile returns the content of a passwd file with the account in it. It replaces
// the entry of the same name.
func (a Account) PasswdFile(base string) string {
	shell := "/bin/sh"
	var out strings.Builder
	for line := range strings.Lines(base) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), ":"); f[0] == a.Name {
			if len(f) == 7 && f[6] != "" {
				shell = f[6]
			}
			continue
		}
		out.WriteString(strings.TrimSuffix(line, "\n") + "\n")
	}
	_, _ = fmt.Fprintf(&out, "%s:x:%d:%d:%s:%s:%s\n", a.Name, a.UID, a.GID, a.Name, a.Home, shell)
	return out.String()
}

// GroupFile is PasswdFile for a group file.
func (a Account) GroupFile(base string) string {
	var out strings.Builder
	for line := range strings.Lines(base) {
		if name, _, _ := strings.Cut(line, ":"); name != a.Group {
			out.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	_, _ = fmt.Fprintf(&out, "%s:x:%d:\n", a.Group, a.GID)
	return out.String()
}

// nameOf returns the name that a passwd or group file gives to a number.
func nameOf(file string, id uint32) string {
	for line := range strings.Lines(file) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) > 2 && f[2] == strconv.FormatUint(uint64(id), 10) {
			return f[0]
		}
	}
	return ""
}
