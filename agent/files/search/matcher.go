package search

import (
	"bytes"
	"errors"
	"regexp"
	"regexp/syntax"
	"strings"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const (
	maxLiteral = 64 << 10
	maxRegexp  = 16 << 10
)

// Matcher matches lines. It is safe for concurrent use.
type Matcher struct {
	// literal is a text that every matching line contains; with re it is only a
	// hint. Empty: no hint.
	literal []byte
	// fold means that literal is in lower case and matches regardless of case.
	fold bool
	re   *regexp.Regexp
}

// NewMatcher compiles a pattern.
func NewMatcher(pattern string, kind sandboxv1.PatternSyntax, ignoreCase bool) (*Matcher, error) {
	if kind != sandboxv1.PatternSyntax_PATTERN_SYNTAX_RE2 {
		return newLiteral(pattern, ignoreCase)
	}
	if len(pattern) > maxRegexp {
		return nil, errors.New("the expression is too long")
	}
	if ignoreCase {
		pattern = "(?i)" + pattern
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, err
	}
	hint, fold := required(tree.Simplify())
	return &Matcher{re: re, literal: []byte(hint), fold: fold}, nil
}

func newLiteral(text string, ignoreCase bool) (*Matcher, error) {
	switch {
	case len(text) > maxLiteral:
		return nil, errors.New("the text is too long")
	case strings.Contains(text, "\n"):
		return nil, errors.New("lines are matched one by one, so the text must not contain a line end")
	case !ignoreCase:
		return &Matcher{literal: []byte(text)}, nil
	case foldsASCII(text):
		return &Matcher{literal: []byte(strings.ToLower(text)), fold: true}, nil
	}
	re, err := regexp.Compile("(?i)" + regexp.QuoteMeta(text))
	return &Matcher{re: re}, err
}

// foldsASCII reports whether all upper and lower case forms of text are ASCII. "k" and
// "s" have others: the Kelvin sign and the long s.
func foldsASCII(text string) bool {
	for i := range len(text) {
		switch c := text[i]; {
		case c >= 0x80, c == 'k', c == 'K', c == 's', c == 'S':
			return false
		}
	}
	return true
}

// required returns the longest text that every match of an expression contains. With
// fold it is in lower case and matches regardless of case.
func required(re *syntax.Regexp) (text string, fold bool) {
	switch re.Op {
	case syntax.OpLiteral:
		text = string(re.Rune)
		switch {
		case re.Flags&syntax.FoldCase == 0:
			return text, false
		case foldsASCII(text):
			return strings.ToLower(text), true
		}
	case syntax.OpCapture, syntax.OpPlus:
		return required(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return required(re.Sub[0])
		}
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			if t, f := required(sub); len(t) > len(text) {
				text, fold = t, f
			}
		}
		return text, fold
	}
	return "", false
}

// line reports whether a line without its line end matches. With fold, lower is the
// line in lower case.
func (m *Matcher) line(text, lower []byte) bool {
	where := text
	if m.fold {
		where = lower
	}
	return bytes.Contains(where, m.literal) && (m.re == nil || m.re.Match(text))
}

// lowerASCII copies src to dst, with "A" to "Z" in lower case.
func lowerASCII(dst, src []byte) {
	for i, c := range src {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst[i] = c
	}
}
