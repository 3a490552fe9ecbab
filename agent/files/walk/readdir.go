package walk

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// Entry is a name in a directory and its type.
type Entry struct {
	Name string
	Mode uint32 // unix.S_IFMT bits, 0 if unknown
}

// IsDir reports whether the entry is a directory.
func (e Entry) IsDir() bool { return e.Mode == unix.S_IFDIR }

// Reader reads a directory in parts. os.File would look up unknown types by path,
// without the view.
type Reader struct {
	fd  int
	buf []byte
}

// NewReader reads the directory of a descriptor, which it does not close.
func NewReader(fd int) *Reader { return &Reader{fd: fd, buf: make([]byte, 32<<10)} }

// Offsets in the kernel's struct linux_dirent64.
const (
	direntLength = 16
	direntType   = 18
	direntName   = 19
)

// Next returns the next entries without "." and "..", and none at the end.
func (d *Reader) Next() ([]Entry, error) {
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

func (d *Reader) parse(b []byte) []Entry {
	out := make([]Entry, 0, len(b)/32)
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
			out = append(out, Entry{Name: s, Mode: d.mode(s, b[direntType])})
		}
		b = b[size:]
	}
	return out
}

func (d *Reader) mode(name string, typ byte) uint32 {
	if typ != unix.DT_UNKNOWN {
		return uint32(typ) << 12 // the types are the upper bits of a mode
	}
	var st unix.Stat_t
	if unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return 0
	}
	return st.Mode & unix.S_IFMT
}
