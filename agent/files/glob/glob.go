// Package glob matches paths against patterns while a tree is walked.
//
// The syntax is that of GlobFilesRequest: "*", "?", classes, braces, and "**" as
// a whole segment for any number of directories that do not begin with a dot. A
// name that begins with a dot matches only where its segment does. A pattern
// without "/" is bare: it matches the name alone, at any depth or only directly
// below the root of the walk. Repeated slashes and "." segments mean nothing. A
// "**" at the end stands for all that is below. A "/" at the end asks for
// directories.
package glob

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrPattern is wrapped by the errors of Compile.
var ErrPattern = errors.New("bad pattern")

// maxLength bounds the text of a pattern.
const maxLength = 4096

// Pattern is a compiled pattern. It is safe for concurrent use.
type Pattern struct {
	segments []segment // of all alternatives, each ended by its last
	starts   []int32
	anywhere bool // a bare pattern at any depth
}

// State is what of a pattern can still match below one directory. The zero
// value matches nothing.
type State struct{ at []int32 }

// Dead reports whether nothing below can match.
func (s State) Dead() bool { return len(s.at) == 0 }

// Compile reads a pattern. A bare one matches at any depth unless shallow is
// set.
func Compile(pattern string, shallow bool) (*Pattern, error) {
	if len(pattern) > maxLength {
		return nil, fmt.Errorf("%w: longer than %d bytes", ErrPattern, maxLength)
	}
	if strings.IndexByte(pattern, 0) >= 0 {
		return nil, fmt.Errorf("%w: holds NUL", ErrPattern)
	}
	list, err := expand(pattern)
	if err != nil {
		return nil, err
	}
	p := &Pattern{anywhere: !shallow && !strings.Contains(pattern, "/")}
	slices.Sort(list)
	for _, alt := range slices.Compact(list) {
		if err := p.add(alt); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// add appends the segments of one alternative.
func (p *Pattern) add(alt string) error {
	start := len(p.segments)
	for part := range strings.SplitSeq(alt, "/") {
		switch part {
		case "", ".":
			continue
		case "..":
			return fmt.Errorf("%w: \"..\" leads out of the tree", ErrPattern)
		}
		seg := newSegment(part)
		if n := len(p.segments); seg.kind == deep && n > start && p.segments[n-1].kind == deep {
			continue // "**/**" is "**"
		}
		p.segments = append(p.segments, seg)
	}
	n := len(p.segments)
	if n == start {
		return nil // only slashes: the root itself, which is never listed
	}
	last := &p.segments[n-1]
	last.last = true
	last.directory = strings.HasSuffix(alt, "/") && last.kind != deep
	if p.anywhere && last.kind == deep {
		last.kind = any // alone, "**" is a name like "*"
	}
	p.starts = append(p.starts, int32(start))
	return nil
}

// Start is the state at the root of the walk.
func (p *Pattern) Start() State { return State{at: p.close(slices.Clone(p.starts))} }

// close adds what follows each "**", which may stand for nothing.
func (p *Pattern) close(at []int32) []int32 {
	for i := 0; i < len(at); i++ {
		if seg := &p.segments[at[i]]; seg.kind == deep && !seg.last && !slices.Contains(at, at[i]+1) {
			at = append(at, at[i]+1)
		}
	}
	return at
}

// Step looks at one name in the directory of s: whether it matches, and if it
// is a directory, the state in it.
func (p *Pattern) Step(s State, name string, directory bool) (match bool, below State) {
	var at []int32
	for _, i := range s.at {
		seg := &p.segments[i]
		switch {
		case seg.kind == deep:
			if hidden(name) {
				continue
			}
			match = match || seg.last
			at = append(at, i)
		case !seg.match(name):
		case !seg.last:
			at = append(at, i+1)
		case !seg.directory || directory:
			match = true
		}
	}
	switch {
	case !directory:
		return match, State{}
	case p.anywhere:
		return match, s
	}
	slices.Sort(at)
	return match, State{at: p.close(slices.Compact(at))}
}

// Match reports whether the path of a file, relative to the root, matches.
func (p *Pattern) Match(path string) bool {
	s := p.Start()
	for {
		name, rest, more := strings.Cut(path, "/")
		match, below := p.Step(s, name, more)
		if !more {
			return match
		}
		path, s = rest, below
	}
}
