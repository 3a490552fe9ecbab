package local

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const noteSize = 64 << 10

// note is where a runtime and an agent write their complaints: a file in memory
// that cannot grow, because a sandbox must not be able to fill the host's disk
// or block on a pipe that nobody reads. What does not fit is lost.
type note struct{ file *os.File }

func newNote() (*note, error) {
	fd, err := unix.MemfdCreate("sandgate-note", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "sandgate-note")
	err = f.Truncate(noteSize)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("memfd: %w", err)
	}
	return &note{file: f}, nil
}

// text returns what was written so far, at most its last 2 KiB.
func (n *note) text() string {
	data := make([]byte, noteSize)
	got, _ := n.file.ReadAt(data, 0)
	data = data[:got]
	if end := bytes.IndexByte(data, 0); end >= 0 {
		data = data[:end]
	}
	data = bytes.TrimSpace(data)
	if len(data) > 2048 {
		data = data[len(data)-2048:]
	}
	return string(data)
}

func (n *note) close() { _ = n.file.Close() }
