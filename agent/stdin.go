package agent

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// stdin is the agent's end of a command's standard input.
type stdin struct {
	turn     chan struct{} // holds a token while somebody writes
	file     *os.File      // nil when there is none
	terminal bool
	next     atomic.Int64 // offset of the next byte

	state  sync.Mutex
	closed bool
}

func newStdin(terminal bool, taken int64) *stdin {
	s := &stdin{turn: make(chan struct{}, 1), terminal: terminal}
	s.next.Store(taken)
	return s
}

var (
	errStdinClosed = errors.New("standard input was not opened or has ended")
	errStdinHole   = errors.New("the bytes do not follow those that were taken")
)

// endOfFile is the character that ends input on a terminal in its usual mode.
const endOfFile = 4

// write appends bytes at an offset; it skips those that were taken already. It
// waits while another call writes and while the command does not read, and
// returns the offset of the next byte. Without an error that is the end of data.
func (s *stdin) write(ctx context.Context, offset int64, data []byte, eof bool) (int64, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return s.taken(), context.Cause(ctx)
	}
	defer func() { <-s.turn }()
	next := s.taken()
	if offset > next || offset < 0 {
		return next, errStdinHole
	}
	skip := min(next-offset, int64(len(data)))
	data = data[skip:]
	if s.isClosed() {
		if len(data) == 0 && (eof || skip > 0) {
			return next, nil
		}
		return next, errStdinClosed
	}
	if len(data) > 0 {
		n, err := s.put(ctx, data)
		next = s.next.Add(int64(n))
		if err != nil {
			return next, err
		}
	}
	if eof && s.terminal {
		_, err := s.put(ctx, []byte{endOfFile})
		return next, err
	}
	if eof {
		s.close()
	}
	return next, nil
}

// put writes until all is written or ctx ends. It needs the turn.
func (s *stdin) put(ctx context.Context, data []byte) (int, error) {
	_ = s.file.SetWriteDeadline(time.Time{})
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = s.file.SetWriteDeadline(time.Unix(1, 0))
	})
	n, err := s.file.Write(data)
	if !stop() {
		<-interrupted // or it would interrupt the next writer
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, context.Cause(ctx)
	case errors.Is(err, unix.EPIPE), errors.Is(err, os.ErrClosed), errors.Is(err, unix.EIO):
		s.close()
		return n, errStdinClosed
	}
	return n, err
}

// taken returns how many bytes were written.
func (s *stdin) taken() int64 { return s.next.Load() }

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
