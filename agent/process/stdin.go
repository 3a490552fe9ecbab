package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/agent/fault"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// WriteStdin appends to a command's standard input.
func (s *Service) WriteStdin(ctx context.Context, r *sandboxv1.WriteStdinRequest) (*sandboxv1.WriteStdinResponse, error) {
	c, err := s.command(r.GetExecId())
	if err != nil {
		return nil, err
	}
	if len(r.GetData()) > streaming.MaxChunk {
		return nil, invalid("data", "must not be larger than 1 MiB")
	}
	next, err := c.stdin.write(ctx, r.GetOffset(), r.GetData(), r.GetEof())
	switch {
	case err == nil:
		return &sandboxv1.WriteStdinResponse{NextOffset: next}, nil
	case ctx.Err() != nil:
		return nil, fault.CallEnded(ctx)
	case errors.Is(err, errStdinGap):
		return nil, fault.New(codes.OutOfRange, sandboxv1.ErrorReason_ERROR_REASON_STDIN_OFFSET_MISMATCH,
			fmt.Sprintf("offset %d does not follow the %d bytes that were taken", r.GetOffset(), next),
			map[string]string{"offset": strconv.FormatInt(next, 10)})
	case errors.Is(err, errStdinClosed):
		return nil, fault.New(codes.FailedPrecondition, sandboxv1.ErrorReason_ERROR_REASON_STDIN_CLOSED,
			"standard input was not opened or has ended", map[string]string{"exec_id": c.id})
	default:
		return nil, fault.Internal(err)
	}
}

// stdin is the agent's end of a command's standard input.
type stdin struct {
	writing  chan struct{} // a lock that a context can interrupt: holds a value while locked
	file     *os.File      // nil if there is none
	terminal bool
	next     atomic.Int64 // offset of the next byte

	mu     sync.Mutex
	closed bool
}

func newStdin(terminal bool, taken int64) *stdin {
	s := &stdin{writing: make(chan struct{}, 1), terminal: terminal}
	s.next.Store(taken)
	return s
}

var (
	errStdinClosed = errors.New("standard input was not opened or has ended")
	errStdinGap    = errors.New("the bytes do not follow those that were taken")
)

const (
	// endOfFile is the character that ends input on a terminal in canonical mode.
	endOfFile = 4
	// pipeRoom is how much an empty pipe takes without blocking.
	pipeRoom = 4 << 10
)

// write appends data at an offset, without the bytes that were taken before. It
// blocks while another call writes and while the command does not read. It
// returns the offset of the next byte, which is the end of data if err is nil.
func (s *stdin) write(ctx context.Context, offset int64, data []byte, eof bool) (int64, error) {
	select {
	case s.writing <- struct{}{}:
	case <-ctx.Done():
		return s.taken(), context.Cause(ctx)
	}
	defer func() { <-s.writing }()
	next := s.taken()
	if offset > next || offset < 0 {
		return next, errStdinGap
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

// put writes until all is written or ctx is done. It requires the lock writing.
func (s *stdin) put(ctx context.Context, data []byte) (int, error) {
	_ = s.file.SetWriteDeadline(time.Time{})
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = s.file.SetWriteDeadline(time.Unix(1, 0))
	})
	n, err := s.file.Write(data)
	if !stop() {
		<-interrupted // or the deadline would interrupt the next writer
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
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file == nil || s.closed
}

// close ends the input. The descriptor of a terminal belongs to the command.
func (s *stdin) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil || s.closed {
		return
	}
	s.closed = true
	if !s.terminal {
		_ = s.file.Close()
	}
}

// writeFirstInput writes the input that came with Execute.
func (c *command) writeFirstInput(ctx context.Context, r *sandboxv1.ExecuteRequest) {
	data, eof := r.GetStdin(), !r.GetStdinOpen() && !c.terminal
	if len(data) == 0 && !eof {
		return
	}
	if len(data) <= pipeRoom && !c.terminal {
		_, _ = c.stdin.write(ctx, 0, data, eof)
		return
	}
	// The command may never read it. Then the close at its end unblocks the write.
	go c.service.recovery.Guard("a command's first input", func() {
		_, _ = c.stdin.write(context.WithoutCancel(ctx), 0, data, eof)
	})
}
