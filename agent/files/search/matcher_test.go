package search

import (
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// FuzzMatcher checks that the hint of an expression never hides a match.
func FuzzMatcher(f *testing.F) {
	for _, s := range [][2]string{
		{"foo (bar|baz)+", "a foo bar"}, {"(?i)Needle$", "NEEDLE"}, {"a{2,3}b?c", "aac"}, {"(?i:ab)cd", "ABcd"},
		{"x*|abc", "q"}, {"(?:abc)?d", "d"}, {`\x{212A}`, "\u212a"}, {"(?i)k", "\u212a"}, {"[a]bc", "abc"}, {"(?s)a.b", "a\xffb"},
	} {
		f.Add(s[0], s[1], true)
		f.Add(s[0], s[1], false)
	}
	f.Fuzz(func(t *testing.T, pattern, line string, ignoreCase bool) {
		m, err := NewMatcher(pattern, sandboxv1.PatternSyntax_PATTERN_SYNTAX_RE2, ignoreCase)
		if err != nil {
			return
		}
		lower := make([]byte, len(line))
		lowerASCII(lower, []byte(line))
		if want := m.re.MatchString(line); m.line([]byte(line), lower) != want {
			t.Errorf("%q on %q with hint %q: the expression says %v", pattern, line, m.literal, want)
		}
	})
}
