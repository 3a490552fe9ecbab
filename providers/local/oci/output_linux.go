package oci

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const outputSize = 64 << 10

// Output captures what a runtime and an agent write. It is a file in memory of a
// fixed size: a sandbox can neither fill the host's disk nor block on a pipe without
// a reader. What does not fit is lost.
type Output struct{ file *os.File }

// NewOutput returns an empty output.
func NewOutput() (*Output, error) {
	fd, err := unix.MemfdCreate("sandgate-output", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "sandgate-output")
	err = f.Truncate(outputSize)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("memfd: %w", err)
	}
	return &Output{file: f}, nil
}

// Text returns what was written so far, at most its last 2 KiB.
func (o *Output) Text() string {
	data := make([]byte, outputSize)
	got, _ := o.file.ReadAt(data, 0)
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

// Close releases the memory.
func (o *Output) Close() { _ = o.file.Close() }
