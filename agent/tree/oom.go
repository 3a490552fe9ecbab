package tree

import "os"

// OOMCounter reads how often the kernel killed a process of the sandbox because
// memory ran out, if the sandbox can read that.
type OOMCounter struct{ file *os.File }

// Cgroup v2 first, then v1, as a container sees its own cgroup.
var oomFiles = []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"}

// OpenOOMCounter opens the counter. Without one, the result counts nothing.
func OpenOOMCounter() *OOMCounter {
	for _, name := range oomFiles {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		c := &OOMCounter{file: f}
		if _, ok := c.Kills(); ok {
			return c
		}
		_ = f.Close()
	}
	return &OOMCounter{}
}

// Kills returns the number of kills since the sandbox began.
func (c *OOMCounter) Kills() (int64, bool) {
	if c.file == nil {
		return 0, false
	}
	var buf [512]byte
	n, _ := c.file.ReadAt(buf[:], 0)
	return counter(buf[:n], "oom_kill")
}

// Close closes the counter.
func (c *OOMCounter) Close() {
	if c.file != nil {
		_ = c.file.Close()
	}
}
