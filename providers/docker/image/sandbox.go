package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"strconv"
	"strings"
)

// Where things are in a sandbox.
const (
	agentDir   = "/sandgate"
	AgentPath  = agentDir + "/sandgate-agent"
	SocketDir  = agentDir + "/socket"
	StateDir   = "/run/sandgate"
	HomeDir    = "/home/sandbox"
	WorkingDir = "/workspace"
)

// Places are the writable directories and the ends of their volumes' names.
var Places = []struct{ Name, At string }{
	{"workspace", WorkingDir},
	{"home", HomeDir},
	{"tool-results", "/large_tool_results"},
	{"history", "/conversation_history"},
	{"tmp", "/tmp"},
	{"var-tmp", "/var/tmp"},
	{"state", StateDir},
}

// User is the user of a sandbox.
type User struct {
	Name string // as Docker takes it
	Root bool

	uid, gid int
	numeric  bool
}

// ParseUser returns a user by the name that Docker takes: a name, a number, or one with
// a group behind a colon. Without a name it is root.
func ParseUser(name string) User {
	id, group, _ := strings.Cut(name, ":")
	uid, idErr := strconv.Atoi(id)
	gid, groupErr := strconv.Atoi(group)
	root := id == "" || id == "root" || idErr == nil && uid == 0
	return User{Name: name, Root: root, uid: uid, gid: gid, numeric: idErr == nil && groupErr == nil}
}

// directories are those of a prepared image's layer.
func directories(u User) []tar.Header {
	dirs := []tar.Header{
		{Name: "home/", Mode: 0o755}, {Name: "var/", Mode: 0o755}, {Name: agentDir[1:] + "/", Mode: 0o755}, {Name: SocketDir[1:] + "/", Mode: 0o755},
		// A tmpfs takes the mode of the directory that it covers.
		{Name: "run/", Mode: 0o1777},
	}
	for _, place := range Places {
		h := tar.Header{Name: place.At[1:] + "/", Mode: 0o755, Uid: u.uid, Gid: u.gid}
		if !u.numeric || strings.HasSuffix(place.At, "/tmp") {
			h.Mode, h.Uid, h.Gid = 0o1777, 0, 0
		}
		dirs = append(dirs, h)
	}
	for i := range dirs {
		dirs[i].Typeflag = tar.TypeDir
	}
	return dirs
}

// layer returns the layer of a prepared image as a tar stream.
func layer(agent []byte, u User) (*bytes.Buffer, error) {
	out := &bytes.Buffer{}
	w := tar.NewWriter(out)
	for _, h := range directories(u) {
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
	}
	if err := w.WriteHeader(&tar.Header{Name: AgentPath[1:], Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(agent))}); err != nil {
		return nil, err
	}
	_, err := w.Write(agent)
	return out, errors.Join(err, w.Close())
}
