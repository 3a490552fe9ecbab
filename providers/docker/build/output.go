package build

import (
	"io"
	"regexp"
	"strings"
	"unicode"
)

// maxLine is the length at which a line without an end is printed.
const maxLine = 64 << 10

// escapes are the sequences that colour a terminal's text. The builder marks standard
// error with them.
var escapes = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)

// lines prints text line by line without control characters: what a command of a
// Dockerfile prints must not steer the terminal.
type lines struct {
	to   io.Writer
	open string
	last string // of the lines that are not empty
}

// Write implements io.Writer.
func (l *lines) Write(text []byte) (int, error) {
	l.write(string(text))
	return len(text), nil
}

func (l *lines) write(text string) {
	l.open += strings.ReplaceAll(text, "\r\n", "\n")
	for {
		i := strings.IndexAny(l.open, "\r\n")
		if i < 0 && len(l.open) > maxLine {
			i = maxLine
			l.open = l.open[:i] + "\n" + l.open[i:]
		}
		if i < 0 {
			return
		}
		l.print(l.open[:i])
		l.open = l.open[i+1:]
	}
}

func (l *lines) flush() {
	if l.open != "" {
		l.print(l.open)
	}
	l.open = ""
}

func (l *lines) print(line string) {
	line = strip(line)
	if strings.TrimSpace(line) != "" {
		l.last = line
	}
	// A reader that went away does not end the build.
	_, _ = io.WriteString(l.to, line+"\n")
}

// strip removes control characters and escape sequences.
func strip(line string) string {
	return strings.Map(func(r rune) rune {
		if r != '\t' && unicode.IsControl(r) {
			return -1
		}
		return r
	}, escapes.ReplaceAllString(line, ""))
}
