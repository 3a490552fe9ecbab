package search

import (
	"bytes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// contextBlock is read at once for context.
const contextBlock = 16 << 10

// context adds the lines around a hit. It reads them again, so that the search need not
// keep lines.
func (s *scanner) context(m *sandboxv1.SearchMatch, fd int, h hit) {
	r := s.query.Request
	if n := int(r.GetContextBefore()); n > 0 && h.start > 0 {
		m.Before = linesBefore(fd, h.start, n)
	}
	if n := int(r.GetContextAfter()); n > 0 {
		m.After = linesAfter(fd, h.end, n)
	}
}

// linesBefore returns up to n lines that end before start, each cut to maxLine.
func linesBefore(fd int, start int64, n int) [][]byte {
	// b is complete when it has n+1 line ends or begins at the start of the file.
	var b []byte
	from := start
	for from > 0 && bytes.Count(b, newline) <= n && len(b) < n*maxLine {
		size := min(from, contextBlock)
		block := make([]byte, size)
		got, err := pread(fd, block, from-size)
		if err != nil || int64(got) < size {
			break // the file was changed
		}
		from -= size
		b = append(block, b...)
	}
	lines := bytes.Split(bytes.TrimSuffix(b, newline), newline)
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return clipLines(lines)
}

// linesAfter returns up to n lines from start on, each cut to maxLine.
func linesAfter(fd int, start int64, n int) [][]byte {
	var b []byte
	for bytes.Count(b, newline) < n && len(b) < n*maxLine {
		block := make([]byte, contextBlock)
		got, err := pread(fd, block, start+int64(len(b)))
		b = append(b, block[:got]...)
		if err != nil || got == 0 {
			break
		}
	}
	if len(b) == 0 {
		return nil
	}
	lines := bytes.SplitN(b, newline, n+1)
	if len(lines) > n {
		lines = lines[:n]
	} else if len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1] // nothing follows the last line end
	}
	return clipLines(lines)
}

func clipLines(lines [][]byte) [][]byte {
	out := make([][]byte, 0, len(lines))
	for _, l := range lines {
		out = append(out, clip(bytes.TrimSuffix(l, []byte("\r"))))
	}
	return out
}
