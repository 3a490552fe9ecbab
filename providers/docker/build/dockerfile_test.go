package build

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestBases(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		args       map[string]string
		want       []string
	}{
		{"one", "FROM debian:12\nRUN true\n", nil, []string{"debian:12"}},
		{"case, tabs and CRLF", "from\tdebian:12\r\nrun true\r\n", nil, []string{"debian:12"}},
		{"stages", "FROM golang AS Build\nFROM build AS test\nFROM debian\nCOPY --from=build /x /x\n", nil, []string{"debian", "golang"}},
		{"platform", "FROM --platform=linux/arm64 debian AS x\n", nil, []string{"debian"}},
		{"scratch", "FROM scratch\n", nil, nil},
		{"default of an argument", "ARG V=3.12\nFROM python:${V}-slim\n", nil, []string{"python:3.12-slim"}},
		{"quotes", `ARG V="3.12"` + "\nFROM python:$V\n", nil, []string{"python:3.12"}},
		{"given argument", "ARG V=3.12\nFROM python:$V\n", map[string]string{"V": "3.13"}, []string{"python:3.13"}},
		{"argument without a default", "ARG V\nFROM python:$V\n", map[string]string{"V": "3.13"}, []string{"python:3.13"}},
		{"undeclared argument", "FROM python:$V\n", map[string]string{"V": "3.13"}, nil},
		{"argument of a stage", "FROM debian\nARG V=1\nFROM python:$V\n", nil, []string{"debian"}},
		{"expression", "FROM python:${V:-3.12}\n", nil, nil},
		{"comments and continued lines", "# syntax=x\n\nFROM \\\n  # why\n  debian:12 \\\n  AS a\n", nil, []string{"debian:12"}},
		{"the same twice", "FROM debian\nFROM debian\n", nil, []string{"debian"}},
		{"heredocs", "FROM a\nRUN <<E1 cat; cat 3<<-'E2'\nFROM b\nE1\nfrom c import d\n\tE2\nCOPY <<\"END\" /x\nFROM e\nEND\nFROM f\n", nil, []string{"a", "f"}},
		{"heredoc without an end", "FROM a\nRUN <<E\nFROM b\n", nil, []string{"a", "b"}},
		{"no heredoc", "FROM a\nENV X=<<E\nFROM b\nRUN echo $((1<<2))\nFROM c\nE\n2))\n", nil, []string{"a", "b", "c"}},
		{"nothing", "", nil, nil},
		{"no image", "FROM\nFROM --platform=x\n", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := bases([]byte(c.text), c.args); !slices.Equal(got, c.want) {
				t.Errorf("%q instead of %q", got, c.want)
			}
		})
	}
}

func FuzzBases(f *testing.F) {
	f.Add([]byte("ARG V=1\nFROM --platform=x python:${V} AS a\nFROM a\n"), "2")
	f.Add([]byte("FROM \\\n# c\n x \\"), "")
	f.Fuzz(func(t *testing.T, text []byte, value string) {
		for _, image := range bases(text, map[string]string{"V": value}) {
			if image == "" || image == "scratch" {
				t.Errorf("%q is a base", image)
			}
		}
		// What follows a comment to the end of its line changes nothing.
		commented := append([]byte("# comment\n"), text...)
		if a, b := bases(text, nil), bases(commented, nil); !slices.Equal(a, b) {
			t.Errorf("%q and, after a comment, %q", a, b)
		}
	})
}

func TestOutputHasNoControlCharacters(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := &lines{to: &out}
	for _, text := range []string{"Step 1\n\x1b[0;91mwar", "ning\x1b[0m\n", "10%\r20%\r\n", "\x1b]0;title\x07\n", "a\tb\u009b\n", strings.Repeat("x", maxLine+1), "\nend"} {
		l.write(text)
	}
	l.flush()
	want := "Step 1\nwarning\n10%\n20%\n]0;title\na\tb\n" + strings.Repeat("x", maxLine) + "\nx\nend\n"
	if out.String() != want {
		t.Errorf("%.100q instead of %.100q", out.String(), want)
	}
}
