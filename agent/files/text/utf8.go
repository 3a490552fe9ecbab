// Package text has the algorithms for text files: a window of lines, replacement, and
// the check for UTF-8. All of them work on a stream of bytes in bounded memory.
package text

import (
	"unicode/utf8"
)

// SniffBytes is how much of a file decides whether it is text.
const SniffBytes = 8192

// IsText reports whether the beginning of a file is UTF-8. If more follows, its last
// character may be incomplete.
func IsText(head []byte, more bool) bool {
	if len(head) > SniffBytes {
		head, more = head[:SniffBytes], true
	}
	if more {
		head = trimPartial(head)
	}
	return utf8.Valid(head)
}

// trimPartial removes an incomplete character from the end of b.
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

// Checker checks that all added bytes together are UTF-8.
type Checker struct {
	partial []byte
	bad     bool
}

// Add takes the next bytes.
func (t *Checker) Add(b []byte) {
	if t.bad || len(b) == 0 {
		return
	}
	// A character that began in the previous bytes is completed byte by byte.
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

// Valid reports whether all bytes are UTF-8.
func (t *Checker) Valid() bool { return !t.bad && len(t.partial) == 0 }
