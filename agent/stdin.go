package agent

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// stdin is the agent's end of a command's standard input.
type stdin struct {
	mu       sync.Mutex // held by the writer
	file     *os.File   // nil when there is none
	terminal bool
	next     int64 // offset of the next byte

	state  sync.Mutex
	closed bool
}

var (
	errStdinClosed = errors.New("standard input was not opened or has ended")
	errStdinHole   = errors.New("the bytes do not follow those that were taken")
)

// endOfFile is the character that ends input on a terminal in its usual mode.
const endOfFile = 4

// write appends bytes at an offset; those taken already are skipped. It waits
// while the command does not read, and says how far it came.
func (s *stdin) write(ctx context.Context, offset int64, data []byte, eof bool) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if offset > s.next || offset < 0 {
		return s.next, errStdinHole
	}
	skip := min(s.next-offset, int64(len(data)))
	data = data[skip:]
	if s.isClosed() {
		if len(data) == 0 && (eof || skip > 0) {
			return s.next, nil
		}
		return s.next, errStdinClosed
	}
	if len(data) > 0 {
		_ = s.file.SetWriteDeadline(time.Time{})
		stop := context.AfterFunc(ctx, func() { _ = s.file.SetWriteDeadline(time.Unix(1, 0)) })
		n, err := s.file.Write(data)
		stop()
		s.next += int64(n)
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return s.next, context.Cause(ctx)
		case errors.Is(err, unix.EPIPE), errors.Is(err, os.ErrClosed), errors.Is(err, unix.EIO):
			s.close()
			return s.next, errStdinClosed
		default:
			return s.next, err
		}
	}
	if eof {
		if s.terminal {
			_, _ = s.file.Write([]byte{endOfFile})
		} else {
			s.close()
		}
	}
	return s.next, nil
}

// taken returns how many bytes were written.
func (s *stdin) taken() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

func (s *stdin) isClosed() bool {
	s.state.Lock()
	defer s.state.Unlock()
	return s.file == nil || s.closed
}

// close ends the input. On a terminal the descriptor belongs to the command.
func (s *stdin) close() {
	s.state.Lock()
	defer s.state.Unlock()
	if s.file == nil || s.closed {
		return
	}
	s.closed = true
	if !s.terminal {
		_ = s.file.Close()
	}
}
