package search

import (
	"bytes"
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/text"
)

const (
	scanBlock = 256 << 10
	// maxMatched is the longest line that is matched as a whole. In a longer line,
	// parts are matched.
	maxMatched = 1 << 20
)

// hit is a matching line.
type hit struct {
	line  int64
	text  []byte // without its line end; valid until the callback returns
	start int64  // offset of the line
	end   int64  // offset after its line end
}

// scanner searches one file after the other with the same buffers.
type scanner struct {
	query *Query
	buf   []byte
	lower []byte
}

func newScanner(q *Query) *scanner { return &scanner{query: q, buf: make([]byte, scanBlock)} }

// pass is the state of one file's search.
type pass struct {
	*scanner
	emit func(hit) bool
	base int64 // offset of the block
	line int64 // number of the block's first line

	long    bool // within a line longer than maxMatched
	matched bool
	head    []byte
	start   int64
}

// scan calls emit for every matching line until emit returns false. It returns false
// for a binary file, which it skips unless the request includes binary files.
func (s *scanner) scan(ctx context.Context, fd int, emit func(hit) bool) (bool, error) {
	p := &pass{scanner: s, emit: emit, line: 1}
	have := 0
	for off := int64(0); ctx.Err() == nil; {
		n, err := pread(fd, s.buf[have:], off)
		if err != nil {
			return off > 0, err
		}
		if off == 0 && !s.query.Request.GetIncludeBinary() &&
			bytes.IndexByte(s.buf[:min(n, text.SniffBytes)], 0) >= 0 {
			return false, nil
		}
		off += int64(n)
		have += n
		eof := n == 0
		used, ok := p.block(s.buf[:have], eof)
		if !ok || eof {
			break
		}
		p.base += int64(used)
		have = copy(s.buf, s.buf[used:have])
		if have == len(s.buf) {
			s.grow()
		}
	}
	return true, nil
}

func (s *scanner) grow() {
	bigger := make([]byte, min(2*len(s.buf), maxMatched))
	copy(bigger, s.buf)
	s.buf = bigger
}

func pread(fd int, b []byte, off int64) (int, error) {
	for {
		n, err := unix.Pread(fd, b, off)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// block searches the complete lines of b, and at the end of the file all of b. It
// returns how many bytes it used, and false if the search is over.
func (p *pass) block(b []byte, eof bool) (used int, ok bool) {
	if p.long {
		if used, ok = p.rest(b, eof); p.long || !ok {
			return used, ok
		}
	}
	lines := b[used:]
	if !eof {
		lines = lines[:bytes.LastIndexByte(lines, '\n')+1]
	}
	if len(lines) == 0 {
		if len(b)-used < maxMatched || eof {
			return used, true
		}
		p.long, p.matched, p.start = true, false, p.base+int64(used)
		p.head = append(p.head[:0], b[used:used+maxLine]...)
		n, ok := p.rest(b[used:], eof)
		return used + n, ok
	}
	ok = p.lines(lines, p.base+int64(used))
	return used + len(lines), ok
}

// rest continues a line that is longer than the buffer.
func (p *pass) rest(b []byte, eof bool) (used int, ok bool) {
	end := bytes.IndexByte(b, '\n')
	part := b
	if end >= 0 {
		part = b[:end]
	}
	p.matched = p.matched || p.query.Matcher.line(part, p.fold(part))
	if end < 0 && !eof {
		// A match may begin here and end in the next part.
		return len(b) - min(len(b), p.query.Matcher.overlap()), true
	}
	p.long = false
	number := p.line
	p.line++
	if used = len(b); end >= 0 {
		used = end + 1
	}
	if !p.matched {
		return used, true
	}
	return used, p.emit(hit{line: number, text: p.head, start: p.start, end: p.base + int64(used)})
}

func (p *pass) fold(b []byte) []byte {
	if !p.query.Matcher.fold {
		return nil
	}
	if len(p.lower) < len(b) {
		p.lower = make([]byte, max(len(b), len(p.buf)))
	}
	lowerASCII(p.lower[:len(b)], b)
	return p.lower[:len(b)]
}

// lines searches complete lines. It jumps from one occurrence of the literal to the
// next and counts the lines in between.
func (p *pass) lines(b []byte, base int64) bool {
	m := p.query.Matcher
	lower := p.fold(b)
	where := b
	if m.fold {
		where = lower
	}
	counted := 0
	for from := 0; from < len(b); {
		at := from
		if len(m.literal) > 0 {
			i := bytes.Index(where[from:], m.literal)
			if i < 0 {
				break
			}
			at += i
		}
		start := from + bytes.LastIndexByte(b[from:at], '\n') + 1
		end, next := len(b), len(b)
		if i := bytes.IndexByte(b[at:], '\n'); i >= 0 {
			end, next = at+i, at+i+1
		}
		from = next
		line := bytes.TrimSuffix(b[start:end], []byte("\r"))
		var low []byte
		if m.fold {
			low = lower[start : start+len(line)]
		}
		if !m.line(line, low) {
			continue
		}
		p.line += int64(bytes.Count(b[counted:start], newline))
		counted = start
		h := hit{line: p.line, text: line, start: base + int64(start), end: base + int64(next)}
		if !p.emit(h) {
			return false
		}
	}
	p.line += int64(bytes.Count(b[counted:], newline))
	return true
}

var newline = []byte("\n")

// overlap is how much of a part of a long line is matched again with the next part.
func (m *Matcher) overlap() int {
	if m.re != nil {
		return 4 << 10
	}
	return len(m.literal) - 1
}
