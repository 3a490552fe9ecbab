package text

import "bytes"

// Window collects lines from a stream of bytes. "\r\n" and a lone "\r" end a
// line as "\n" does.
type Window struct {
	Skip  int64 // lines before the window
	Limit int64 // lines of the window, -1 for no limit
	Max   int   // bytes of Content

	Lines     int64 // complete lines so far
	First     int64 // number of the first line in Content
	Last      int64 // number of the last line in Content
	Content   []byte
	Truncated bool // Content is cut at Max

	open  bool // bytes of another line have come
	cr    bool // the last byte was "\r": a "\n" belongs to it
	full  bool // Content is complete
	start int  // offset of the open line in Content
}

// Add takes the next bytes.
func (w *Window) Add(b []byte) {
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

// next updates the index of the next c after the first used bytes are removed, so that
// no byte is searched twice.
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
func (w *Window) inside() bool {
	return !w.full && w.Lines >= w.Skip && (w.Limit < 0 || w.Lines < w.Skip+w.Limit)
}

func (w *Window) piece(b []byte) {
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
	if room := w.Max - len(w.Content); len(b) > room {
		w.overflow(b[:max(room, 0)])
		return
	}
	w.Content = append(w.Content, b...)
}

// begin starts a line of the window.
func (w *Window) begin() {
	w.start = len(w.Content)
	if w.First == 0 {
		w.First = w.Lines + 1
		return
	}
	if len(w.Content) >= w.Max {
		w.overflow(nil)
		return
	}
	w.Content = append(w.Content, '\n')
}

// overflow ends the window before the open line. Only a first line is cut within its
// bytes, so that a reader can get past it.
func (w *Window) overflow(fits []byte) {
	w.full, w.Truncated = true, true
	if w.First != w.Lines+1 {
		w.Content = w.Content[:w.start]
		return
	}
	w.Content = trimPartial(append(w.Content, fits...))
	w.Last = w.First
}

func (w *Window) endLine() {
	if !w.open && w.inside() {
		w.begin() // an empty line
	}
	if w.inside() {
		w.Last = w.Lines + 1
	}
	w.Lines++
	w.open = false
}

// End must be called at the end of the file.
func (w *Window) End() {
	if w.open {
		w.endLine()
	}
}

// Decided reports whether later bytes cannot change Content or More.
func (w *Window) Decided() bool {
	return (w.full || w.Limit >= 0 && w.Lines >= w.Skip+w.Limit) && w.More()
}

// More reports whether lines follow after the window.
func (w *Window) More() bool {
	seen := w.Lines
	if w.open {
		seen++
	}
	return seen > max(w.Last, w.Skip)
}
