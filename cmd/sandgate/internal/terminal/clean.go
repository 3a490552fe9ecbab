package terminal

import "strings"

// Clean replaces control characters: text from a sandbox must not steer the
// terminal that prints it.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
