package files

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
)

// replaceBlock is how much of a file is searched at once.
const replaceBlock = 256 << 10

// replacer replaces every occurrence of old, from left to right and without
// overlap, in bounded memory.
type replacer struct {
	old, new []byte
	check    bool // look whether all of it is UTF-8

	text    textCheck
	count   int64
	written int64
}

// run reads size bytes of src and writes the outcome to dst, which may be nil.
func (r *replacer) run(ctx context.Context, src io.ReaderAt, size int64, dst io.Writer) error {
	out := bufio.NewWriterSize(io.Discard, 0)
	if dst != nil {
		out = bufio.NewWriterSize(dst, replaceBlock)
	}
	buf := make([]byte, max(replaceBlock, 2*len(r.old)))
	in := io.NewSectionReader(src, 0, size)
	have, eof := 0, false // buf[:have] is not yet searched, or may begin a match
	for !eof {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := io.ReadFull(in, buf[have:])
		eof = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !eof {
			return err
		}
		if r.check {
			r.text.add(buf[have : have+n])
		}
		have += n
		rest := r.block(buf[:have], out, eof)
		have = copy(buf, rest)
	}
	return out.Flush()
}

// block replaces in b and returns what has to wait for more bytes. Errors of
// out stay with it until Flush.
func (r *replacer) block(b []byte, out *bufio.Writer, eof bool) []byte {
	for {
		i := bytes.Index(b, r.old)
		if i < 0 {
			break
		}
		r.count++
		r.put(out, b[:i])
		r.put(out, r.new)
		b = b[i+len(r.old):]
	}
	keep := min(len(r.old)-1, len(b))
	if eof {
		keep = 0
	}
	r.put(out, b[:len(b)-keep])
	return b[len(b)-keep:]
}

func (r *replacer) put(out *bufio.Writer, b []byte) {
	n, _ := out.Write(b)
	r.written += int64(n)
}
