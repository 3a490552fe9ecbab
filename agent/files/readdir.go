package files

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// dirEntry is a name in a directory and what it is.
type dirEntry struct {
	name string
	mode uint32 // unix.S_IFMT bits; 0: not known
}

func (e dirEntry) isDir() bool { return e.mode == unix.S_IFDIR }

// dirReader reads a directory in pieces. os.File would ask for unknown types by
// path, past the view.
type dirReader struct {
	fd  int
	buf []byte
}

func newDirReader(fd int) *dirReader { return &dirReader{fd: fd, buf: make([]byte, 32<<10)} }

// Offsets in the kernel's struct linux_dirent64.
const (
	direntLength = 16
	direntType   = 18
	direntName   = 19
)

// next returns the next names without "." and "..", and none at the end.
func (d *dirReader) next() ([]dirEntry, error) {
	for {
		n, err := unix.Getdents(d.fd, d.buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		case n <= 0:
			return nil, nil
		}
		if out := d.parse(d.buf[:n]); len(out) > 0 {
			return out, nil
		}
	}
}

func (d *dirReader) parse(b []byte) []dirEntry {
	out := make([]dirEntry, 0, len(b)/32)
	for len(b) > direntName {
		size := int(binary.NativeEndian.Uint16(b[direntLength:]))
		if size <= direntName || size > len(b) {
			break
		}
		name := b[direntName:size]
		if end := bytes.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		if s := string(name); s != "." && s != ".." {
			out = append(out, dirEntry{name: s, mode: d.mode(s, b[direntType])})
		}
		b = b[size:]
	}
	return out
}

func (d *dirReader) mode(name string, typ byte) uint32 {
	if typ != unix.DT_UNKNOWN {
		return uint32(typ) << 12 // the types are the upper bits of a mode
	}
	var st unix.Stat_t
	if unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return 0
	}
	return st.Mode & unix.S_IFMT
}
