package glob_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandgate/sandgate/agent/files/glob"
)

func TestMatch(t *testing.T) {
	tests := []struct {
		pattern string
		shallow bool
		yes, no string // space-separated
	}{
		{pattern: "*.py", yes: "a.py d/e/a.py .github/a.py", no: ".a.py a.pyc d/.a.py"},
		{pattern: "*.py", shallow: true, yes: "a.py", no: "d/a.py"},
		{pattern: "**/*.py", yes: "a.py d/a.py d/e/a.py", no: ".d/a.py d/.e/a.py .a.py"},
		{pattern: "*.yml", yes: ".github/workflows/ci.yml"},
		{pattern: "**/*.yml", no: ".github/workflows/ci.yml"},
		{pattern: ".github/**/*.yml", yes: ".github/workflows/ci.yml .github/ci.yml"},
		{pattern: ".*", yes: ".env d/.env", no: "env"},
		{pattern: "[.]*", no: ".env"},
		{pattern: "src/*", yes: "src/a", no: "src/a/b a src"},
		{pattern: "src/**", yes: "src/a src/a/b", no: "src src/.a src/.a/b src/a/.b other/a"},
		{pattern: "**", yes: "a d/a", no: ".a"},
		{pattern: "/**", yes: "a d/a", no: ".a .d/a d/.a"},
		{pattern: "/*.py", yes: "a.py", no: "d/a.py"},
		{pattern: "//a//b.py", yes: "a/b.py"},
		{pattern: "./a/b.py", yes: "a/b.py"},
		{pattern: "a/**/b", yes: "a/b a/x/b a/x/y/b", no: "a/.x/b b a/xb"},
		{pattern: "a/**/**/b", yes: "a/b a/x/b a/x/y/b"},
		{pattern: "**/a/**/b", yes: "a/b x/a/y/b a/a/b"},
		{pattern: "**/*/**/*", yes: "a/b a/b/c", no: "a"},
		{pattern: "a**b/c", yes: "ab/c axxb/c", no: "a/x/b/c"},
		{pattern: "?", yes: "a é d/世", no: "ab"},
		{pattern: "[a-c]x", yes: "ax cx", no: "dx x"},
		{pattern: "[!a-c]x", yes: "dx", no: "ax"},
		{pattern: "[^a-c]x", yes: "dx", no: "ax"},
		{pattern: "[]]x", yes: "]x", no: "x"},
		{pattern: "[!]]x", yes: "ax", no: "]x"},
		{pattern: "[a-]x", yes: "ax -x", no: "bx"},
		{pattern: "[x", yes: "[x", no: "x"},
		{pattern: "[z-a]", no: "z a m"},
		{pattern: `a\*b`, yes: `a\xxb`, no: "a*b"},
		{pattern: "*.{py,js}", yes: "a.py b/a.js", no: "a.go"},
		{pattern: "{a,b{c,d}}.x", yes: "a.x bc.x bd.x", no: "b.x"},
		{pattern: "{a}.x", yes: "{a}.x", no: "a.x"},
		{pattern: "{a,b", yes: "{a,b", no: "a"},
		{pattern: "{src,lib}/**/*.go", yes: "src/a.go lib/x/a.go", no: "a.go"},
		{pattern: "{,x}a", yes: "a xa"},
		{pattern: "a*b*c", yes: "abc axbxc abcbc", no: "ab acb"},
		{pattern: "dir/", no: "dir dir/a"},
		{pattern: "/", no: "a"},
	}
	for _, tt := range tests {
		p, err := glob.Compile(tt.pattern, tt.shallow)
		if err != nil {
			t.Errorf("%q: %v", tt.pattern, err)
			continue
		}
		for _, path := range strings.Fields(tt.yes) {
			if !p.Match(path) {
				t.Errorf("%q does not match %q", tt.pattern, path)
			}
		}
		for _, path := range strings.Fields(tt.no) {
			if p.Match(path) {
				t.Errorf("%q matches %q", tt.pattern, path)
			}
		}
	}
}

func TestDirectories(t *testing.T) {
	for pattern, want := range map[string]bool{"dir/": true, "d*": true, "/dir": true, "**/": true, "x/": false} {
		p, err := glob.Compile(pattern, false)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := p.Step(p.Start(), "dir", true); got != want {
			t.Errorf("%q matches the directory: %v", pattern, got)
		}
	}
}

func TestPrunes(t *testing.T) {
	p, err := glob.Compile("src/*.go", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, below := p.Step(p.Start(), "other", true); !below.Dead() {
		t.Error("a directory that cannot match is entered")
	}
	if _, below := p.Step(p.Start(), "src", true); below.Dead() {
		t.Error("a directory that can match is not entered")
	}
}

func TestRefused(t *testing.T) {
	for _, pattern := range []string{
		"..", "a/../b", "../*", "{..,a}/b", "{.,a}{.,b}/c", "a\x00b",
		strings.Repeat("{a,b}", 10), strings.Repeat("{a,b}", 500), strings.Repeat("x", 5000),
	} {
		if _, err := glob.Compile(pattern, false); !errors.Is(err, glob.ErrPattern) {
			t.Errorf("%.40q: %v", pattern, err)
		}
	}
	if _, err := glob.Compile(strings.Repeat("{a,b}", 9), false); err != nil {
		t.Errorf("512 alternatives: %v", err)
	}
}

// FuzzMatch compares with regular expressions made in another way: every
// alternative is one expression over the whole path.
func FuzzMatch(f *testing.F) {
	for _, s := range [][2]string{
		{"*.py", "a/b.py"}, {"**/*.py", "a/.b/c.py"}, {"a/**/b", "a/x/b"}, {"[!a-c]?{x,y}", "dzx"},
		{"src/**", "src/.a/b"}, {"{a,{b,c}d}/*", "bd/x"}, {"[]a]*[", "]x["}, {"/a", "a"}, {"**/", "a/b"},
	} {
		f.Add(s[0], s[1], false)
	}
	f.Fuzz(func(t *testing.T, pattern, path string, shallow bool) {
		p, err := glob.Compile(pattern, shallow)
		if err != nil {
			return
		}
		if path = strings.Trim(path, "/"); path == "" || strings.Contains(path, "//") || !utf8.ValidString(pattern) || !utf8.ValidString(path) || strings.Contains(path, "\x00") {
			return
		}
		for part := range strings.SplitSeq(path, "/") {
			if part == "." || part == ".." {
				return
			}
		}
		if got, want := p.Match(path), reference(pattern, path, shallow); got != want {
			t.Errorf("%q on %q: %v, the reference says %v", pattern, path, got, want)
		}
	})
}

func reference(pattern, path string, shallow bool) bool {
	bare := !strings.Contains(pattern, "/")
	if bare && !shallow {
		path = path[strings.LastIndexByte(path, '/')+1:]
	}
	for _, alt := range referenceBraces(pattern) {
		var parts []string
		for _, s := range strings.Split(alt, "/") {
			if s != "" && s != "." {
				parts = append(parts, s)
			}
		}
		if len(parts) == 0 || (strings.HasSuffix(alt, "/") && parts[len(parts)-1] != "**") {
			continue // directories only
		}
		var expr strings.Builder
		expr.WriteString(`(?s)\A`)
		for i, s := range parts {
			last := i == len(parts)-1
			switch {
			case s == "**" && bare && !shallow:
				expr.WriteString(`[^./][^/]*`)
			case s == "**" && last:
				expr.WriteString(`[^./][^/]*(?:/[^./][^/]*)*`)
			case s == "**":
				expr.WriteString(`(?:[^./][^/]*/)*`)
				continue
			default:
				expr.WriteString(referenceSegment(s))
			}
			if !last {
				expr.WriteByte('/')
			}
		}
		expr.WriteString(`\z`)
		if regexp.MustCompile(expr.String()).MatchString(path) {
			return true
		}
	}
	return false
}

// referenceSegment writes a segment as an expression; the first character may
// not be a dot unless the segment's is.
func referenceSegment(s string) string {
	var one []string // expressions for single characters, "*" for a run
	r := []rune(s)
	for i := 0; i < len(r); i++ {
		switch r[i] {
		case '*':
			one = append(one, "*")
			continue
		case '?':
			one = append(one, `[^/]`)
			continue
		case '[':
			j := i + 1
			negate := j < len(r) && (r[j] == '!' || r[j] == '^')
			if negate {
				j++
			}
			end := j + 1
			for end < len(r) && r[end] != ']' {
				end++
			}
			if end < len(r) {
				one = append(one, referenceClass(r[j:end], negate))
				i = end
				continue
			}
		}
		one = append(one, regexp.QuoteMeta(string(r[i])))
	}
	var build func(i int, first bool) string
	build = func(i int, first bool) string {
		if i == len(one) {
			return ""
		}
		if one[i] == "*" {
			if !first || r[0] == '.' {
				return `[^/]*` + build(i+1, false)
			}
			return `(?:[^./][^/]*` + build(i+1, false) + `|` + orNothing(build(i+1, true)) + `)`
		}
		if first && r[0] != '.' {
			// Go's syntax has no look-ahead: say it by listing what is not a dot.
			return notDot(one[i]) + build(i+1, false)
		}
		return one[i] + build(i+1, false)
	}
	return build(0, true)
}

func orNothing(e string) string {
	if e == "" {
		return `[^\x00-\x{10FFFF}]` // a name is never empty
	}
	return e
}

func notDot(e string) string {
	switch {
	case e == `[^/]`:
		return `[^./]`
	case e == `\.`:
		return `[^\x00-\x{10FFFF}]`
	case strings.HasPrefix(e, "(?:"): // a class, as alternatives
		return strings.ReplaceAll(e, dotMember, `[^\x00-\x{10FFFF}]`)
	default:
		return e
	}
}

const dotMember = `(?:\.)`

// referenceClass lists a class so that the dot is an alternative of its own.
func referenceClass(body []rune, negate bool) string {
	type span struct{ a, b rune }
	var spans []span
	for i := 0; i < len(body); i++ {
		s := span{body[i], body[i]}
		if i+2 < len(body) && body[i+1] == '-' {
			s.b = body[i+2]
			i += 2
		}
		if s.a <= s.b {
			spans = append(spans, s)
		}
	}
	in := func(r rune) bool {
		for _, s := range spans {
			if s.a <= r && r <= s.b {
				return true
			}
		}
		return false
	}
	var alts []string
	if in('.') != negate {
		alts = append(alts, dotMember)
	}
	var set strings.Builder
	for _, s := range spans {
		for _, part := range []span{{s.a, min(s.b, '.'-1)}, {max(s.a, '.'+1), s.b}} {
			if part.a <= part.b {
				set.WriteString(hexRange(part.a, part.b))
			}
		}
	}
	switch {
	case negate:
		alts = append(alts, `[^./`+set.String()+`]`)
	case set.Len() > 0:
		alts = append(alts, `[`+set.String()+`]`)
	}
	if len(alts) == 0 {
		return `[^\x00-\x{10FFFF}]`
	}
	return `(?:` + strings.Join(alts, "|") + `)`
}

func hexRange(a, b rune) string {
	const digits = "0123456789ABCDEF"
	hex := func(r rune) string {
		out := ""
		for ; r > 0 || out == ""; r /= 16 {
			out = string(digits[r%16]) + out
		}
		return `\x{` + out + `}`
	}
	return hex(a) + "-" + hex(b)
}

func referenceBraces(p string) []string {
	for start := 0; start < len(p); start++ {
		if p[start] != '{' {
			continue
		}
		depth, commas, end := 0, []int{}, -1
		for i := start; i < len(p) && end < 0; i++ {
			switch {
			case p[i] == '{':
				depth++
			case p[i] == '}':
				if depth--; depth == 0 {
					end = i
				}
			case p[i] == ',' && depth == 1:
				commas = append(commas, i)
			}
		}
		if end < 0 {
			return []string{p}
		}
		if len(commas) == 0 {
			start = end
			continue
		}
		var out []string
		from := start + 1
		for _, c := range append(commas, end) {
			for _, tail := range referenceBraces(p[from:c] + p[end+1:]) {
				out = append(out, p[:start]+tail)
			}
			from = c + 1
		}
		return out
	}
	return []string{p}
}
