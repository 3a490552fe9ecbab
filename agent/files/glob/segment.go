package glob

import (
	"strings"
	"unicode/utf8"
)

// segment matches one name.
type segment struct {
	dot    bool // begins with ".", so it may match names that do
	tokens []token
	text   string // the whole segment or, after a leading "*", its rest
	kind   uint8

	last      bool // of its alternative
	directory bool // matches directories only
}

const (
	general uint8 = iota
	exact         // text is the name
	suffix        // "*" and text
	any           // "*"
	deep          // "**": any number of directories
)

// token matches one character, or with star any run of them.
type token struct {
	char    rune
	star    bool
	one     bool // "?"
	class   []span
	negated bool
}

type span struct{ from, to rune }

func newSegment(s string) segment {
	seg := segment{dot: strings.HasPrefix(s, "."), text: s}
	switch {
	case s == "**":
		seg.kind = deep
	case strings.Trim(s, "*") == "":
		seg.kind = any
	case !strings.ContainsAny(s, "*?["):
		seg.kind = exact
	case s[0] == '*' && !strings.ContainsAny(s[1:], "*?["):
		seg.kind, seg.text = suffix, s[1:]
	default:
		seg.tokens = tokens(s)
	}
	return seg
}

func tokens(s string) []token {
	var out []token
	for len(s) > 0 {
		r, n := char(s)
		switch r {
		case '*':
			if len(out) == 0 || !out[len(out)-1].star {
				out = append(out, token{star: true})
			}
		case '?':
			out = append(out, token{one: true})
		case '[':
			if t, size := class(s); size > 0 {
				out, n = append(out, t), size
				break
			}
			out = append(out, token{char: '['}) // without an end
		default:
			out = append(out, token{char: r})
		}
		s = s[n:]
	}
	return out
}

// class reads "[…]" at the beginning of s and returns its length, 0 when it has
// no end. A "]" that comes first is a member.
func class(s string) (token, int) {
	t := token{class: []span{}}
	i := 1
	if i < len(s) && (s[i] == '!' || s[i] == '^') {
		t.negated = true
		i++
	}
	first := i
	end := -1
	for j := first; j < len(s); j++ {
		if s[j] == ']' && j > first {
			end = j
			break
		}
	}
	if end < 0 {
		return t, 0
	}
	body := s[first:end]
	for len(body) > 0 {
		from, n := char(body)
		body = body[n:]
		to := from
		if len(body) > 1 && body[0] == '-' {
			to, n = char(body[1:])
			body = body[1+n:]
		}
		t.class = append(t.class, span{from, to})
	}
	return t, end + 1
}

// char returns the first character of s. A byte that is not UTF-8 is a character
// of its own, beyond all others.
func char(s string) (rune, int) {
	r, n := utf8.DecodeRuneInString(s)
	if r == utf8.RuneError && n == 1 {
		return utf8.MaxRune + 1 + rune(s[0]), 1
	}
	return r, n
}

func (t *token) match(r rune) bool {
	switch {
	case t.one:
		return true
	case t.class != nil:
		for _, s := range t.class {
			if s.from <= r && r <= s.to {
				return !t.negated
			}
		}
		return t.negated
	default:
		return t.char == r
	}
}

// match reports whether a name matches a segment that is not deep.
func (s *segment) match(name string) bool {
	if hidden(name) && !s.dot {
		return false
	}
	switch s.kind {
	case any:
		return true
	case exact:
		return name == s.text
	case suffix:
		return strings.HasSuffix(name, s.text)
	}
	// On a mismatch the last star takes one character more.
	tok, star := 0, -1
	again := ""
	for len(name) > 0 {
		r, n := char(name)
		switch {
		case tok < len(s.tokens) && s.tokens[tok].star:
			star, again = tok, name
			tok++
		case tok < len(s.tokens) && s.tokens[tok].match(r):
			tok++
			name = name[n:]
		case star >= 0:
			_, n = char(again)
			again = again[n:]
			tok, name = star+1, again
		default:
			return false
		}
	}
	for tok < len(s.tokens) && s.tokens[tok].star {
		tok++
	}
	return tok == len(s.tokens)
}

func hidden(name string) bool { return strings.HasPrefix(name, ".") }
