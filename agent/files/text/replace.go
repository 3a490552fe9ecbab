package text

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
)

// replaceBlock is how much of a file is searched at once.
const replaceBlock = 256 << 10

// Replacer replaces every occurrence of Old by New, from left to right and without
// overlap.
type Replacer struct {
	Old, New []byte
	Check    bool // add all bytes to Text

	Text    Checker
	Count   int64 // occurrences
	Written int64 // bytes of the result
}

// Run reads size bytes of src and writes the result to dst, which may be nil.
func (r *Replacer) Run(ctx context.Context, src io.ReaderAt, size int64, dst io.Writer) error {
	out := bufio.NewWriterSize(io.Discard, 0)
	if dst != nil {
		out = bufio.NewWriterSize(dst, replaceBlock)
	}
	buf := make([]byte, max(replaceBlock, 2*len(r.Old)))
	in := io.NewSectionReader(src, 0, size)
	have, eof := 0, false // buf[:have] is not searched yet, or may begin a match
	for !eof {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := io.ReadFull(in, buf[have:])
		eof = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !eof {
			return err
		}
		if r.Check {
			r.Text.Add(buf[have : have+n])
		}
		have += n
		rest := r.block(buf[:have], out, eof)
		have = copy(buf, rest)
	}
	return out.Flush()
}

// block replaces in b and returns the end of b that may begin a match. Errors of out
// surface in Flush.
func (r *Replacer) block(b []byte, out *bufio.Writer, eof bool) []byte {
	for {
		i := bytes.Index(b, r.Old)
		if i < 0 {
			break
		}
		r.Count++
		r.put(out, b[:i])
		r.put(out, r.New)
		b = b[i+len(r.Old):]
	}
	keep := min(len(r.Old)-1, len(b))
	if eof {
		keep = 0
	}
	r.put(out, b[:len(b)-keep])
	return b[len(b)-keep:]
}

func (r *Replacer) put(out *bufio.Writer, b []byte) {
	n, _ := out.Write(b)
	r.Written += int64(n)
}
