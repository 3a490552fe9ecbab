package glob

import (
	"fmt"
	"strings"
)

// maxAlternatives is how many patterns braces may expand to.
const maxAlternatives = 1000

// expand returns the patterns that the braces of p stand for. The first "{"
// without an end, and a group without a comma, are taken as text.
func expand(p string) ([]string, error) {
	start := strings.IndexByte(p, '{')
	if start < 0 {
		return []string{p}, nil
	}
	end := groupEnd(p, start)
	if end < 0 {
		return []string{p}, nil
	}
	suffix := p[end+1:]
	parts := alternatives(p[start+1 : end])
	if len(parts) == 1 {
		tails, err := expand(suffix)
		for i := range tails {
			tails[i] = p[:end+1] + tails[i]
		}
		return tails, err
	}
	var out []string
	for _, part := range parts {
		tails, err := expand(part + suffix)
		if err != nil {
			return nil, err
		}
		if len(out)+len(tails) > maxAlternatives {
			return nil, fmt.Errorf("%w: braces stand for more than %d patterns", ErrPattern, maxAlternatives)
		}
		for _, t := range tails {
			out = append(out, p[:start]+t)
		}
	}
	return out, nil
}

// groupEnd returns the index of the "}" that closes the group at start, or -1.
func groupEnd(p string, start int) int {
	depth := 0
	for i := start; i < len(p); i++ {
		switch p[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// alternatives splits the inside of a group at its own commas.
func alternatives(body string) []string {
	var out []string
	depth, from := 0, 0
	for i := range len(body) {
		switch body[i] {
		case '{':
			depth++
		case '}':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, body[from:i])
				from = i + 1
			}
		}
	}
	return append(out, body[from:])
}
