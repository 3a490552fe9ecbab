package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// usage reads the counters of the cgroup, as far as its controllers are there.
func (g *cgroup) usage(u *usage) {
	user, system := g.cpu()
	u.user = max(u.user, time.Duration(user-g.user)*time.Microsecond)
	u.system = max(u.system, time.Duration(system-g.system)*time.Microsecond)
	if !g.pool.memory {
		return
	}
	if b, err := os.ReadFile(filepath.Join(g.dir, "memory.peak")); err == nil {
		if v, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
			u.peak, u.whole = v, true
		}
	}
	events, err := os.ReadFile(filepath.Join(g.dir, "memory.events"))
	if err == nil {
		u.oomKills, u.oomKnown = counter(events, "oom_kill")
	}
}

// cpu returns microseconds in user mode and in the kernel.
func (g *cgroup) cpu() (user, system int64) {
	stat := g.file("cpu.stat")
	user, _ = counter(stat, "user_usec")
	system, _ = counter(stat, "system_usec")
	return user, system
}

// file reads a short file of the cgroup, empty when it is gone.
func (g *cgroup) file(name string) []byte {
	fd, err := unix.Openat(g.fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	buf := make([]byte, 1024)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil
	}
	return buf[:n]
}

func counter(stat []byte, name string) (int64, bool) {
	for line := range bytes.Lines(stat) {
		if key, value, ok := bytes.Cut(line, []byte(" ")); ok && string(key) == name {
			v, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
			return v, err == nil
		}
	}
	return 0, false
}
