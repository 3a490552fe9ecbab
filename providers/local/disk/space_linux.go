package disk

import (
	"errors"
	"fmt"
	"iter"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
)

const (
	// The default reserve is the smaller of these.
	reserveShare = 20 // a twentieth of the file system
	reserveMost  = 2 << 30
)

// Space admits sandboxes by the space of a file system.
type Space struct {
	dir        string
	minFree    int64 // negative: no reserve
	overcommit float64
	images     iter.Seq[string]

	mu       sync.Mutex
	reserved map[string]int64 // images that are not made yet, by path
}

// NewSpace returns the space of the file system of a directory. minFree bytes
// stay free: 0 stands for the default, a negative number for none. The sizes of
// all disks may exceed the space by the factor overcommit; a negative factor
// sets no limit. images yields the paths of possible disk images.
func NewSpace(dir string, minFree int64, overcommit float64, images iter.Seq[string]) *Space {
	return &Space{dir: dir, minFree: minFree, overcommit: overcommit, images: images, reserved: make(map[string]int64)}
}

// errFull is returned to callers instead of the host's own error.
var errFull = fmt.Errorf("the server's disk is full: %w", providers.ErrExhausted)

// stat returns the free space and the size of the file system, in bytes.
func (s *Space) stat() (free, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return 0, 0, fmt.Errorf("free space: %w", err)
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

func (s *Space) reserve(total int64) int64 {
	switch {
	case s.minFree < 0:
		return 0
	case s.minFree > 0:
		return s.minFree
	default:
		return min(total/reserveShare, reserveMost)
	}
}

// Check returns an error that wraps ErrExhausted if the reserve is used up.
func (s *Space) Check() error {
	free, total, err := s.stat()
	if err != nil {
		return err
	}
	if reserve := s.reserve(total); free < reserve {
		return fmt.Errorf("the server's disk has %s free, and no sandbox is created with less than %s: %w", FormatBytes(free), FormatBytes(reserve), providers.ErrExhausted)
	}
	return nil
}

// CheckFile returns an error that wraps ErrExhausted if a file of this size
// would use up the reserve.
func (s *Space) CheckFile(size int64) error {
	free, total, err := s.stat()
	if err != nil {
		return err
	}
	if free-size < s.reserve(total) {
		return errFull
	}
	return nil
}

// Reserve admits a sandbox with a disk of this size, before its image is made
// at a path. Until release is called the size counts; from then on the image's
// own size.
func (s *Space) Reserve(image string, size int64) (release func(), err error) {
	if err := s.Check(); err != nil {
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
	promised, used := s.total()
	for _, n := range s.reserved {
		promised += n
	}
	// The space that images use already is for sandboxes, too.
	most := int64(s.overcommit * float64(max(free-s.reserve(total), 0)+used))
	if promised+size > most {
		return nil, fmt.Errorf("the disks of all sandboxes may have %s together and already have %s: %w", FormatBytes(most), FormatBytes(promised), providers.ErrExhausted)
	}
	s.reserved[image] = size
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.reserved, image)
	}, nil
}

// total returns the size of all disks and what they use. Needs mu.
func (s *Space) total() (size, used int64) {
	for image := range s.images {
		var st unix.Stat_t
		if s.reserved[image] != 0 || unix.Stat(image, &st) != nil {
			continue
		}
		size += st.Size
		used += st.Blocks * 512
	}
	return size, used
}

// Describe returns how sandboxes share the space.
func (s *Space) Describe() string {
	switch {
	case s.overcommit < 0:
		return "there is no bound on all of them together"
	case s.overcommit == 1:
		return "there is space for all of them"
	default:
		return fmt.Sprintf("all of them together may exceed the space by a factor of %g", s.overcommit)
	}
}

// TranslateError returns errFull for a write that failed because the disk is
// full. A runtime or mkfs reports that only in words, so it also looks at the
// free space.
func (s *Space) TranslateError(err error) error {
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
