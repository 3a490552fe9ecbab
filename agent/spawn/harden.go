package spawn

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Harden keeps programs of the agent's own user out of the agent: they cannot
// trace it, read its memory and environment, or take its descriptors. It must
// be called before the first Start.
func Harden() error {
	// What shares the agent's memory has files in /proc that are root's from now
	// on: a child can no longer raise its own oom_score_adj.
	heir.init()
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make the agent untraceable: %w", err)
	}
	return nil
}

// maxScore is the kernel's highest oom_score_adj.
const maxScore = 1000

// inheritance raises the agent's own oom_score_adj while children are started,
// who inherit it, and takes it back after. For that moment the agent is no
// better off than they are; it is small, and the kernel goes by size then.
type inheritance struct {
	open bool // the rest can be used
	fd   int
	base int

	mu       sync.Mutex
	starting int
}

var heir inheritance

func (h *inheritance) init() {
	fd, err := unix.Open("/proc/self/oom_score_adj", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	var buf [16]byte
	n, err := unix.Pread(fd, buf[:], 0)
	base, perr := strconv.Atoi(string(bytes.TrimSpace(buf[:max(n, 0)])))
	if err != nil || perr != nil {
		_ = unix.Close(fd)
		return
	}
	h.open, h.fd, h.base = true, fd, base
}

// above is a score relative to the agent's.
func (h *inheritance) above(score int) int { return min(h.base+score, maxScore) }

// raise is called before a start; what it returns must be called after it.
func (h *inheritance) raise(score int) (lower func()) {
	if !h.open || score <= 0 {
		return func() {}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.starting++; h.starting == 1 {
		h.set(h.above(score))
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.starting--; h.starting == 0 {
			h.set(h.base)
		}
	}
}

func (h *inheritance) set(score int) {
	// Raising needs no privilege, and neither does going back.
	_, _ = unix.Pwrite(h.fd, strconv.AppendInt(nil, int64(score), 10), 0)
}
