package spawn

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Harden protects the agent against programs of its own user: they can't trace it,
// read its memory and environment, or take its descriptors. It must be called
// before the first Start.
func Harden() error {
	// From now on the /proc files of the agent belong to root.
	probe()
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make the agent untraceable: %w", err)
	}
	return nil
}

// maxScore is the kernel's highest oom_score_adj.
const maxScore = 1000

// oomScoreRaiser raises the agent's own oom_score_adj while children start, because
// they inherit it, and lowers it afterwards. In between, the agent is not preferred
// to its commands; but it is small, and the kernel kills the largest. A child can't
// raise its own: the kernel sets that of all processes that share a memory.
type oomScoreRaiser struct {
	open bool // the other fields are valid
	fd   int
	base int

	mu       sync.Mutex
	starting int
}

var oomScore oomScoreRaiser

func (h *oomScoreRaiser) init() {
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

// above returns a score relative to the agent's.
func (h *oomScoreRaiser) above(score int) int { return min(h.base+score, maxScore) }

// raise must be called before a start, and the returned function after it.
func (h *oomScoreRaiser) raise(score int) (lower func()) {
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

func (h *oomScoreRaiser) set(score int) {
	// Raising needs no privilege, and neither does lowering it to where it was.
	_, _ = unix.Pwrite(h.fd, strconv.AppendInt(nil, int64(score), 10), 0)
}
