package terminal

import (
	"testing"
	"unicode/utf8"
)

// What is printed of a sandbox's own words holds nothing that steers a terminal.
func FuzzClean(f *testing.F) {
	f.Add("a\x1b[31mb\u009bc\n")
	f.Fuzz(func(t *testing.T, text string) {
		got := Clean(text)
		for _, r := range got {
			if r < ' ' || r == 0x7f || r > 0x7f && r < 0xa0 {
				t.Errorf("%q became %q", text, got)
			}
		}
		if utf8.RuneCountInString(got) != utf8.RuneCountInString(text) {
			t.Errorf("%q became %q", text, got)
		}
	})
}
