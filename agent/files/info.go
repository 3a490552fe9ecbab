package files

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandgate/sandgate/agent/files/paths"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Short names for file types.
const (
	typeUnknown   = sandboxv1.FileType_FILE_TYPE_UNSPECIFIED
	typeRegular   = sandboxv1.FileType_FILE_TYPE_REGULAR
	typeDirectory = sandboxv1.FileType_FILE_TYPE_DIRECTORY
	typeSymlink   = sandboxv1.FileType_FILE_TYPE_SYMLINK
	typeOther     = sandboxv1.FileType_FILE_TYPE_OTHER
)

func fileType(mode uint32) sandboxv1.FileType {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return typeRegular
	case unix.S_IFDIR:
		return typeDirectory
	case unix.S_IFLNK:
		return typeSymlink
	case 0:
		return typeUnknown
	default:
		return typeOther
	}
}

// wirePath converts a path to a protobuf string. Bytes that are not UTF-8 become U+FFFD;
// such a file can't be named in a request.
func wirePath(p string) string { return strings.ToValidUTF8(p, "\uFFFD") }

func fileInfo(path string, st *unix.Stat_t) *sandboxv1.FileInfo {
	return &sandboxv1.FileInfo{
		Path:       wirePath(path),
		Type:       fileType(st.Mode),
		Size:       st.Size,
		Mode:       st.Mode & maxMode,
		ModifyTime: timestamppb.New(time.Unix(st.Mtim.Unix())),
	}
}

// linkInfo adds the target of a link. It examines the target only if the view allows it.
func linkInfo(v *paths.View, info *sandboxv1.FileInfo, dir int, name, path string) {
	info.SymlinkTarget = readLink(dir, name)
	f, err := v.Open(path, unix.O_PATH, paths.Read)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) == nil {
		info.TargetType = fileType(st.Mode)
	}
}

func readLink(dir int, name string) string {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "" // it was removed
	}
	return wirePath(string(buf[:n]))
}

// openRegular opens a regular file for reading. It never blocks on a named pipe.
func openRegular(v *paths.View, path string, access paths.Access) (*source, error) {
	f, err := v.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, access)
	if err != nil {
		return nil, err
	}
	s := &source{File: f}
	if err = unix.Fstat(int(f.Fd()), &s.stat); err == nil {
		switch s.stat.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			return s, nil
		case unix.S_IFDIR:
			err = unix.EISDIR
		default:
			err = unix.ENXIO
		}
	}
	_ = f.Close()
	return nil, err
}
