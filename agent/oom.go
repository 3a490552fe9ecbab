package agent

import (
	"bytes"
	"os"
	"strconv"
)

// oomCounter reads how often the kernel killed a process of the sandbox for
// want of memory, where it can be seen from inside.
type oomCounter struct{ file *os.File }

// Version 2 first, then version 1, as a container sees its own cgroup.
var oomFiles = []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"}

func openOOMCounter() *oomCounter {
	for _, name := range oomFiles {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		c := &oomCounter{file: f}
		if _, ok := c.read(); ok {
			return c
		}
		_ = f.Close()
	}
	return &oomCounter{}
}

func (c *oomCounter) read() (int64, bool) {
	if c.file == nil {
		return 0, false
	}
	var buf [512]byte
	n, _ := c.file.ReadAt(buf[:], 0)
	for line := range bytes.Lines(buf[:n]) {
		if value, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			v, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
			return v, err == nil
		}
	}
	return 0, false
}

func (c *oomCounter) close() {
	if c.file != nil {
		_ = c.file.Close()
	}
}
