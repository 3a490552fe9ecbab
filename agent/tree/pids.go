package tree

import (
	"bytes"
	"fmt"
	"os"
)

// PidsEvents counts how often the kernel refused the sandbox another process
// because of its limit (the cgroup's pids.events), if the sandbox can read that.
type PidsEvents struct {
	events *os.File
	max    string // path of the limit
}

// Cgroup v2 first, then v1, as a container sees its own cgroup.
var pidsDirs = []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/pids/"}

// OpenPidsEvents opens the counter. Without one, the result counts nothing.
func OpenPidsEvents() *PidsEvents { return openPidsEvents(pidsDirs) }

func openPidsEvents(dirs []string) *PidsEvents {
	for _, dir := range dirs {
		f, err := os.Open(dir + "pids.events")
		if err != nil {
			continue
		}
		c := &PidsEvents{events: f, max: dir + "pids.max"}
		if _, ok := c.Refused(); ok {
			return c
		}
		_ = f.Close()
	}
	return &PidsEvents{}
}

// Refused returns the number of refused starts since the sandbox began.
func (c *PidsEvents) Refused() (int64, bool) {
	if c.events == nil {
		return 0, false
	}
	var buf [256]byte
	n, _ := c.events.ReadAt(buf[:], 0)
	return counter(buf[:n], "max")
}

// limit returns the text of the limit, empty if it cannot be read.
func (c *PidsEvents) limit() string {
	b, err := os.ReadFile(c.max)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// Message returns a message for people if the kernel refused processes since the
// count was before, else "".
func (c *PidsEvents) Message(before int64) string {
	now, ok := c.Refused()
	if !ok || now <= before {
		return ""
	}
	return fmt.Sprintf("meanwhile the sandbox was at its limit of %s processes; refused starts: %d", c.limit(), now-before)
}

// Close closes the counter.
func (c *PidsEvents) Close() {
	if c.events != nil {
		_ = c.events.Close()
	}
}
