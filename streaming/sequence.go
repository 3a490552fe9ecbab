package streaming

import (
	"errors"
	"fmt"
)

// ErrOrder is wrapped by every error of Sequence and Frames.
var ErrOrder = errors.New("streaming: out of order")

// Sequence checks the order of the events that an agent sends for one command: one
// start, then output whose positions are contiguous except for gaps, then one end. The
// zero value expects a command from its beginning. After an error, every call fails.
type Sequence struct {
	pos   int64
	state uint8
	err   error
}

const (
	expectStart uint8 = iota
	expectOutput
	expectNothing
)

// ResumeSequence expects a stream that resumes at a position.
func ResumeSequence(position int64) Sequence { return Sequence{pos: position} }

// Position returns the position after the last event.
func (s *Sequence) Position() int64 { return s.pos }

// Started must be called for the start of the command.
func (s *Sequence) Started() error {
	if s.err == nil && s.state != expectStart {
		s.err = fmt.Errorf("%w: a second start", ErrOrder)
	}
	s.state = max(s.state, expectOutput)
	return s.err
}

// Output must be called for every chunk of n bytes.
func (s *Sequence) Output(position int64, n int) error {
	if s.flowing("output") && position != s.pos {
		s.err = fmt.Errorf("%w: output at position %d, expected %d", ErrOrder, position, s.pos)
	}
	if s.err == nil && (n <= 0 || n > MaxChunk) {
		s.err = fmt.Errorf("%w: chunk of %d bytes", ErrOrder, n)
	}
	if s.err == nil {
		s.pos += int64(n)
	}
	return s.err
}

// Gap must be called for a gap.
func (s *Sequence) Gap(from, to int64) error {
	if s.flowing("gap") && (from != s.pos || to <= from) {
		s.err = fmt.Errorf("%w: gap from %d to %d at position %d", ErrOrder, from, to, s.pos)
	}
	if s.err == nil {
		s.pos = to
	}
	return s.err
}

// Exited must be called for the end of the command.
func (s *Sequence) Exited() error {
	if s.flowing("end") {
		s.state = expectNothing
	}
	return s.err
}

func (s *Sequence) flowing(what string) bool {
	if s.err != nil {
		return false
	}
	switch s.state {
	case expectStart:
		s.err = fmt.Errorf("%w: %s before the start", ErrOrder, what)
	case expectNothing:
		s.err = fmt.Errorf("%w: %s after the end", ErrOrder, what)
	default:
		return true
	}
	return false
}
