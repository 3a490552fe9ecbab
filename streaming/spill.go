package streaming

import (
	"fmt"
	"os"
)

// spill is a ring buffer in an unlinked file. Logical offsets only grow; the offset in
// the file is the logical one modulo size, so the file never grows beyond size.
type spill struct {
	file *os.File
	size int64
	next int64 // logical offset of the next write
}

// openSpill makes the file in dir and unlinks it, so that it is freed however the
// process ends.
func openSpill(dir string, size int64) (*spill, error) {
	f, err := os.CreateTemp(dir, ".output-*")
	if err != nil {
		return nil, fmt.Errorf("open spill file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("unlink spill file: %w", err)
	}
	return &spill{file: f, size: size}, nil
}

// write stores p, which must not be larger than size, and returns its offset.
func (s *spill) write(p []byte) (int64, error) {
	off := s.next
	at := off % s.size
	head := min(int64(len(p)), s.size-at)
	if _, err := s.file.WriteAt(p[:head], at); err != nil {
		return 0, fmt.Errorf("write spill file: %w", err)
	}
	if head < int64(len(p)) {
		if _, err := s.file.WriteAt(p[head:], 0); err != nil {
			return 0, fmt.Errorf("write spill file: %w", err)
		}
	}
	s.next += int64(len(p))
	return off, nil
}

func (s *spill) read(p []byte, off int64) error {
	at := off % s.size
	head := min(int64(len(p)), s.size-at)
	if _, err := s.file.ReadAt(p[:head], at); err != nil {
		return fmt.Errorf("read spill file: %w", err)
	}
	if head < int64(len(p)) {
		if _, err := s.file.ReadAt(p[head:], 0); err != nil {
			return fmt.Errorf("read spill file: %w", err)
		}
	}
	return nil
}

func (s *spill) close() { _ = s.file.Close() }
