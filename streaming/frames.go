package streaming

import "fmt"

// Unknown is the size of a file that is not known beforehand.
const Unknown = -1

// Frames checks the order of an upload: a header, its chunks, the next header
// and so on. The zero value is ready. After an error every further call fails.
type Frames struct {
	open  bool
	size  int64 // declared size of the open file, or Unknown
	off   int64 // bytes of it that have come, those of an earlier try included
	files int
	err   error
}

// Files returns how many headers have come.
func (f *Frames) Files() int { return f.files }

// Offset returns where the next chunk of the open file goes.
func (f *Frames) Offset() int64 { return f.off }

// Header begins a file of size bytes, or Unknown, at an offset, which is not
// zero when an earlier upload is resumed. The file before must be complete.
func (f *Frames) Header(size, offset int64) error {
	f.complete()
	switch {
	case f.err != nil:
	case size < Unknown:
		f.err = fmt.Errorf("%w: size %d", ErrOrder, size)
	case offset < 0 || (size != Unknown && offset > size):
		f.err = fmt.Errorf("%w: offset %d of a file of %d bytes", ErrOrder, offset, size)
	default:
		f.open, f.size, f.off = true, size, offset
		f.files++
	}
	return f.err
}

// Chunk accounts for n bytes of the open file.
func (f *Frames) Chunk(n int) error {
	switch {
	case f.err != nil:
	case !f.open:
		f.err = fmt.Errorf("%w: a chunk before any header", ErrOrder)
	case n <= 0 || n > MaxChunk:
		f.err = fmt.Errorf("%w: chunk of %d bytes", ErrOrder, n)
	case f.size != Unknown && int64(n) > f.size-f.off:
		f.err = fmt.Errorf("%w: more bytes than the %d declared", ErrOrder, f.size)
	default:
		f.off += int64(n)
	}
	return f.err
}

// Finish must be called when the stream ended without an error.
func (f *Frames) Finish() error {
	f.complete()
	if f.err == nil && f.files == 0 {
		f.err = fmt.Errorf("%w: no file", ErrOrder)
	}
	return f.err
}

func (f *Frames) complete() {
	if f.err == nil && f.open && f.size != Unknown && f.off != f.size {
		f.err = fmt.Errorf("%w: file ended after %d of %d bytes", ErrOrder, f.off, f.size)
	}
	f.open = false
}
