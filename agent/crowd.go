package agent

import (
	"bytes"
	"fmt"
	"os"
)

// crowd reads how often the kernel refused the sandbox another process because
// its limit was reached, where that can be seen from inside.
type crowd struct {
	events *os.File
	max    string // path of the limit
}

// Version 2 first, then version 1, as a container sees its own cgroup.
var crowdDirs = []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/pids/"}

func openCrowd(dirs []string) *crowd {
	for _, dir := range dirs {
		f, err := os.Open(dir + "pids.events")
		if err != nil {
			continue
		}
		c := &crowd{events: f, max: dir + "pids.max"}
		if _, ok := c.refused(); ok {
			return c
		}
		_ = f.Close()
	}
	return &crowd{}
}

// refused counts since the sandbox began.
func (c *crowd) refused() (int64, bool) {
	if c.events == nil {
		return 0, false
	}
	var buf [256]byte
	n, _ := c.events.ReadAt(buf[:], 0)
	return counter(buf[:n], "max")
}

// limit is the text of the limit, empty when it cannot be had.
func (c *crowd) limit() string {
	b, err := os.ReadFile(c.max)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// remark says for people that processes were refused since the count was
// before; empty when none was.
func (c *crowd) remark(before int64) string {
	now, ok := c.refused()
	if !ok || now <= before {
		return ""
	}
	return fmt.Sprintf("meanwhile the sandbox was at its limit of %s processes; refused starts: %d", c.limit(), now-before)
}

func (c *crowd) close() {
	if c.events != nil {
		_ = c.events.Close()
	}
}
