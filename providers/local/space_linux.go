package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
)

const (
	// The default reserve is the smaller of these.
	reserveShare = 20 // a twentieth of the file system
	reserveMost  = 2 << 30
)

// space admits sandboxes by the space of the state directory's file system.
type space struct {
	layout     layout
	minFree    int64 // negative: no reserve
	overcommit float64

	mu      sync.Mutex
	claimed map[bundle]int64 // by those whose image is not made yet
}

func newSpace(c Config, l layout) *space {
	return &space{layout: l, minFree: c.MinFree, overcommit: c.DiskOvercommit, claimed: make(map[bundle]int64)}
}

// errFull is shown to callers instead of the host's own error.
var errFull = fmt.Errorf("the server's disk is full: %w", providers.ErrExhausted)

func (s *space) stat() (free, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(string(s.layout), &st); err != nil {
		return 0, 0, fmt.Errorf("free space: %w", err)
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

func (s *space) reserve(total int64) int64 {
	switch {
	case s.minFree < 0:
		return 0
	case s.minFree > 0:
		return s.minFree
	default:
		return min(total/reserveShare, reserveMost)
	}
}

// check refuses a new sandbox when the reserve is used up.
func (s *space) check() error {
	free, total, err := s.stat()
	if err != nil {
		return err
	}
	if reserve := s.reserve(total); free < reserve {
		return fmt.Errorf("the server's disk has %s free, and no sandbox is created with less than %s: %w", bytesText(free), bytesText(reserve), providers.ErrExhausted)
	}
	return nil
}

// fits refuses to use up the reserve by a file of this size.
func (s *space) fits(size int64) error {
	free, total, err := s.stat()
	if err != nil {
		return err
	}
	if free-size < s.reserve(total) {
		return errFull
	}
	return nil
}

// promise admits a sandbox with a disk of this size. Until the returned function
// is called its size counts although its image is not there yet.
func (s *space) promise(b bundle, size int64) (made func(), err error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if size <= 0 || s.overcommit < 0 {
		return func() {}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	free, total, err := s.stat()
	if err != nil {
		return nil, err
	}
	promised, used := s.images()
	for _, n := range s.claimed {
		promised += n
	}
	// What the images hold already is space for sandboxes, too.
	most := int64(s.overcommit * float64(max(free-s.reserve(total), 0)+used))
	if promised+size > most {
		return nil, fmt.Errorf("the disks of all sandboxes may have %s together, and have %s: %w", bytesText(most), bytesText(promised), providers.ErrExhausted)
	}
	s.claimed[b] = size
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.claimed, b)
	}, nil
}

// images returns the size of all disks and what they use. Needs mu.
func (s *space) images() (size, used int64) {
	for _, dir := range []string{s.layout.sandboxes(), s.layout.pool()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			b := bundle(filepath.Join(dir, e.Name()))
			var st unix.Stat_t
			if s.claimed[b] != 0 || unix.Stat(b.image(), &st) != nil {
				continue
			}
			size += st.Size
			used += st.Blocks * 512
		}
	}
	return size, used
}

// describe says how sandboxes share the space.
func (s *space) describe() string {
	switch {
	case s.overcommit < 0:
		return "there is no bound on all of them together"
	case s.overcommit == 1:
		return "there is space for all of them"
	default:
		return fmt.Sprintf("all of them together may exceed the space by a factor of %g", s.overcommit)
	}
}

// explainFull turns the failure of a write for want of space into errFull. A
// runtime or mkfs reports it in words only; then there is no space left.
func (s *space) explainFull(err error) error {
	if err == nil || errors.Is(err, providers.ErrExhausted) {
		return err
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return errFull
	}
	if free, _, statErr := s.stat(); statErr == nil && free < 1<<20 {
		return errFull
	}
	return err
}

func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	default:
		return fmt.Sprintf("%d bytes", n)
	}
}
