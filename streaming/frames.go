package streaming

import "fmt"

// Frames checks the order of an upload's messages: for each file a header, chunks and a
// trailer. After an error, every call fails.
type Frames struct {
	open  bool
	files int
	err   error
}

// Header begins a file.
func (f *Frames) Header() error {
	switch {
	case f.err != nil:
	case f.open:
		f.err = fmt.Errorf("%w: a header before the trailer of file %d", ErrOrder, f.files)
	default:
		f.open = true
		f.files++
	}
	return f.err
}

// Chunk accounts for n bytes of the open file.
func (f *Frames) Chunk(n int) error {
	switch {
	case f.err != nil:
	case !f.open:
		f.err = fmt.Errorf("%w: a chunk without a header", ErrOrder)
	case n <= 0 || n > MaxChunk:
		f.err = fmt.Errorf("%w: chunk of %d bytes", ErrOrder, n)
	}
	return f.err
}

// Trailer ends the open file.
func (f *Frames) Trailer() error {
	switch {
	case f.err != nil:
	case !f.open:
		f.err = fmt.Errorf("%w: a trailer without a header", ErrOrder)
	default:
		f.open = false
	}
	return f.err
}

// Finish must be called when the stream has ended without an error.
func (f *Frames) Finish() error {
	switch {
	case f.err != nil:
	case f.open:
		f.err = fmt.Errorf("%w: the stream ended before the trailer of file %d", ErrOrder, f.files)
	case f.files == 0:
		f.err = fmt.Errorf("%w: no file", ErrOrder)
	}
	return f.err
}
