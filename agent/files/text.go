package files

import (
	"unicode/utf8"
)

// sniffBytes is how much of a file decides whether it is text.
const sniffBytes = 8192

// isText reports whether the beginning of a file is UTF-8. A character may be
// cut at its end where more follows.
func isText(head []byte, more bool) bool {
	if len(head) > sniffBytes {
		head, more = head[:sniffBytes], true
	}
	if more {
		head = trimPartial(head)
	}
	return utf8.Valid(head)
}

// trimPartial takes away a character that is cut at the end of b.
func trimPartial(b []byte) []byte {
	for i := len(b) - 1; i >= 0 && i > len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}

// textCheck tells whether everything written to it is UTF-8.
type textCheck struct {
	partial []byte
	bad     bool
}

func (t *textCheck) add(b []byte) {
	if t.bad || len(b) == 0 {
		return
	}
	// A character that began in the piece before is completed byte by byte.
	for len(t.partial) > 0 && len(b) > 0 && !utf8.FullRune(t.partial) {
		t.partial = append(t.partial, b[0])
		b = b[1:]
	}
	if len(t.partial) > 0 {
		if !utf8.FullRune(t.partial) {
			return
		}
		t.bad = !utf8.Valid(t.partial)
		t.partial = t.partial[:0]
	}
	whole := trimPartial(b)
	t.bad = t.bad || !utf8.Valid(whole)
	t.partial = append(t.partial, b[len(whole):]...)
}

func (t *textCheck) valid() bool { return !t.bad && len(t.partial) == 0 }
