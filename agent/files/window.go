package files

import "bytes"

// window collects lines from a stream of bytes. "\r\n" and a lone "\r" end a
// line as "\n" does.
type window struct {
	skip  int64 // lines before the window
	limit int64 // lines of the window, -1 for no limit
	max   int   // bytes of content

	lines     int64 // that have ended
	open      bool  // bytes of another line have come
	cr        bool  // the last byte was "\r", a "\n" would belong to it
	full      bool  // nothing more goes into the window
	truncated bool
	content   []byte
	start     int   // where the open line begins in content
	first     int64 // number of the first line in content
	last      int64 // number of the last line in content
}

// add takes the next bytes.
func (w *window) add(b []byte) {
	if w.cr && len(b) > 0 {
		if w.cr = false; b[0] == '\n' {
			b = b[1:]
		}
	}
	lf, cr := bytes.IndexByte(b, '\n'), bytes.IndexByte(b, '\r')
	for len(b) > 0 {
		at, step := lf, 1
		if cr >= 0 && (lf < 0 || cr < lf) {
			at = cr
			switch {
			case lf == cr+1:
				step = 2
			case cr+1 == len(b):
				w.cr = true
			}
		}
		if at < 0 {
			w.piece(b)
			return
		}
		w.piece(b[:at])
		w.endLine()
		b = b[at+step:]
		lf, cr = next(b, lf, at+step, '\n'), next(b, cr, at+step, '\r')
	}
}

// next keeps what is known about the next place of c after the first used bytes
// are gone, so that no byte is looked at twice.
func next(b []byte, at, used int, c byte) int {
	switch {
	case at < 0:
		return -1
	case at >= used:
		return at - used
	default:
		return bytes.IndexByte(b, c)
	}
}

// inside reports whether the open line belongs to the window.
func (w *window) inside() bool {
	return !w.full && w.lines >= w.skip && (w.limit < 0 || w.lines < w.skip+w.limit)
}

func (w *window) piece(b []byte) {
	if len(b) == 0 {
		return
	}
	fresh := !w.open
	w.open = true
	if !w.inside() {
		return
	}
	if fresh {
		w.begin()
	}
	if w.full {
		return
	}
	if room := w.max - len(w.content); len(b) > room {
		w.overflow(b[:max(room, 0)])
		return
	}
	w.content = append(w.content, b...)
}

// begin starts a line of the window.
func (w *window) begin() {
	w.start = len(w.content)
	if w.first == 0 {
		w.first = w.lines + 1
		return
	}
	if len(w.content) >= w.max {
		w.overflow(nil)
		return
	}
	w.content = append(w.content, '\n')
}

// overflow ends the window before the open line. The first line is cut within,
// otherwise a reader could not get past it.
func (w *window) overflow(fits []byte) {
	w.full, w.truncated = true, true
	if w.first != w.lines+1 {
		w.content = w.content[:w.start]
		return
	}
	w.content = trimPartial(append(w.content, fits...))
	w.last = w.first
}

func (w *window) endLine() {
	if !w.open && w.inside() {
		w.begin() // an empty line
	}
	if w.inside() {
		w.last = w.lines + 1
	}
	w.lines++
	w.open = false
}

// end must be called at the end of the file.
func (w *window) end() {
	if w.open {
		w.endLine()
	}
}

// decided reports whether later bytes can still change content or more.
func (w *window) decided() bool {
	return (w.full || w.limit >= 0 && w.lines >= w.skip+w.limit) && w.more()
}

// more reports whether lines follow after the window.
func (w *window) more() bool {
	seen := w.lines
	if w.open {
		seen++
	}
	return seen > max(w.last, w.skip)
}
