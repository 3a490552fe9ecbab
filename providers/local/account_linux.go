package local

import (
	"fmt"
	"strconv"
	"strings"
)

// account is the user inside, as /etc/passwd and /etc/group name it.
type account struct {
	name, group string
	uid, gid    uint32
	home        string
}

// The accounts of a sandbox that shows the host's userland.
const (
	basePasswd = "root:x:0:0:root:/root:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	baseGroup  = "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"
)

// passwd returns the content of a passwd file with the account in it. It replaces
// the entry of the same name.
func (a account) passwd(base string) string {
	shell := "/bin/sh"
	var out strings.Builder
	for line := range strings.Lines(base) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), ":"); f[0] == a.name {
			if len(f) == 7 && f[6] != "" {
				shell = f[6]
			}
			continue
		}
		out.WriteString(strings.TrimSuffix(line, "\n") + "\n")
	}
	_, _ = fmt.Fprintf(&out, "%s:x:%d:%d:%s:%s:%s\n", a.name, a.uid, a.gid, a.name, a.home, shell)
	return out.String()
}

// groups is passwd for a group file.
func (a account) groups(base string) string {
	var out strings.Builder
	for line := range strings.Lines(base) {
		if name, _, _ := strings.Cut(line, ":"); name != a.group {
			out.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	_, _ = fmt.Fprintf(&out, "%s:x:%d:\n", a.group, a.gid)
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
