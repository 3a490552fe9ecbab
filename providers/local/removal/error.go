package removal

import (
	"errors"
	"syscall"
)

// ErrSlow is the cause of an attempt that continues in the background.
var ErrSlow = errors.New("timed out")

// Error is a failed removal. Its text is public; the cause, which may name paths of the
// host, is for the log.
type Error struct {
	step  string
	cause error
}

func (e *Error) Error() string {
	var errno syscall.Errno
	switch {
	case errors.Is(e.cause, ErrSlow):
		return "cannot " + e.step + ": timed out"
	case errors.As(e.cause, &errno):
		return "cannot " + e.step + ": " + errno.Error()
	default:
		return "cannot " + e.step
	}
}

func (e *Error) Unwrap() error { return e.cause }
