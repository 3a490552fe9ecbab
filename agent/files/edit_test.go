package files_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

type editor interface {
	EditFile(context.Context, *sandboxv1.EditFileRequest) (*sandboxv1.EditFileResponse, error)
}

func TestEdit(t *testing.T) {
	svc, _ := start(t, files.Config{})
	dir := t.TempDir()
	long := strings.Repeat("é", 200_000) // a character lies across every block
	for i, tt := range []struct {
		file, old, new string
		all, empty     bool
		want           string // the new content, or a reason
		count          int64
	}{
		{"one two one", "two", "2", false, false, "one 2 one", 1},
		{"one two one", "one", "1", false, false, "EDIT_NOT_UNIQUE", 0},
		{"one two one", "one", "1", true, false, "1 two 1", 2},
		{"aaaa", "aa", "b", true, false, "bb", 2},
		{"one", "none", "x", false, false, "EDIT_TEXT_NOT_FOUND", 0},
		{"same", "same", "same", false, false, "same", 1},
		{"gone", "gone", "", false, false, "", 1},
		{"a\r\nb\r\n", "a\nb", "x\ny", false, false, "x\r\ny\r\n", 1},
		{"a\nb\n", "a\r\nb", "x\r\ny", false, false, "x\ny\n", 1},
		{"a\r\nb\na\nb", "a\nb", "c", false, false, "a\r\nb\nc", 1}, // as it is comes first
		{"a\r\nb", "b", "x\ny", false, false, "a\r\nx\ny", 1},
		{"$^.*[a]\\", "$^.*[a]\\", "\\1$0", false, false, "\\1$0", 1},
		{long + "x" + long, "x", "y", false, false, long + "y" + long, 1},
		{long, "é", "e", true, false, strings.Repeat("e", 200_000), 200_000},
		{long + long, long, "z", true, false, "zz", 2},
		{"", "", "new", false, true, "new", 1},
		{"", "", "new", false, false, "REQUEST_INVALID", 0},
		{"x", "", "new", false, true, "REQUEST_INVALID", 0},
		{"", "x", "new", false, true, "EDIT_TEXT_NOT_FOUND", 0},
		{"bad \xff", "bad", "x", false, false, "FILE_NOT_TEXT", 0},
		{long + "\xc3", "\u00e9", "x", true, false, "FILE_NOT_TEXT", 0},
		{"é", "\xa9", "x", false, false, "REQUEST_INVALID", 0},
		{"é", "é", "\xa9", false, false, "REQUEST_INVALID", 0},
		{"nul \x00 is text", "nul", "NUL", false, false, "NUL \x00 is text", 1},
	} {
		path := fmt.Sprintf("%s/%d", dir, i)
		write(t, path, tt.file)
		if err := os.Chmod(path, 0o750); err != nil {
			t.Fatal(err)
		}
		resp, err := edit(t, svc, path, tt.old, tt.new, tt.all, tt.empty)
		got, want := read(t, path), tt.want
		if err != nil {
			if got != tt.file {
				t.Errorf("%d: it failed and changed the file", i)
			}
			got = reason(t, err)
		}
		if got != want || resp.GetOccurrences() != tt.count || err == nil && resp.GetSize() != int64(len(want)) {
			t.Errorf("%d: %.50q, %v, want %.50q", i, got, resp, want)
		}
		if st, err := os.Stat(path); err != nil || st.Mode() != 0o750 {
			t.Errorf("%d: mode %v, %v", i, st.Mode(), err)
		}
	}
	if err := os.Symlink("0", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := edit(t, svc, dir+"/link", "2", "two", false, false); err != nil || read(t, dir+"/0") != "one two one" {
		t.Errorf("by a link: %v", err)
	}
	if target, err := os.Readlink(dir + "/link"); err != nil || target != "0" {
		t.Errorf("the link: %q, %v", target, err)
	}
	for path, want := range map[string]string{"/none": "FILE_NOT_FOUND", "": "FILE_IS_DIRECTORY", "/fifo": "FILE_NOT_REGULAR", "/0/x": "PATH_INVALID"} {
		if _, err := edit(t, svc, dir+path, "x", "y", false, false); reason(t, err) != want {
			t.Errorf("%q: %v, want %s", path, err, want)
		}
	}
	for _, name := range names(t, dir) {
		if strings.HasPrefix(name, ".") {
			t.Errorf("left behind: %s", name)
		}
	}
}

func edit(t testing.TB, svc editor, path, old, new string, all, empty bool) (*sandboxv1.EditFileResponse, error) {
	t.Helper()
	return svc.EditFile(called(t.Context(), nil), &sandboxv1.EditFileRequest{
		Path: path, OldText: []byte(old), NewText: []byte(new), ReplaceAll: all, AllowEmptyOld: empty,
	})
}

// TestConcurrentEditsOfOneFileLoseNothing edits one file from many sides: no edit may be lost.
func TestConcurrentEditsOfOneFileLoseNothing(t *testing.T) {
	svc, _ := start(t, files.Config{})
	path := t.TempDir() + "/f"
	var content strings.Builder
	for i := range 50 {
		fmt.Fprintf(&content, "<%d>", i)
	}
	write(t, path, content.String())
	var group sync.WaitGroup
	for i := range 50 {
		group.Go(func() {
			if _, err := edit(t, svc, path, fmt.Sprintf("<%d>", i), fmt.Sprintf("(%d)", i), false, false); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if want := strings.NewReplacer("<", "(", ">", ")").Replace(content.String()); read(t, path) != want {
		t.Errorf("got %s", read(t, path))
	}
}

func TestEditNotPermitted(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	svc, _ := start(t, files.Config{})
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"/none": 0, "/read": 0o444} {
		write(t, dir+name, "x")
		if err := os.Chmod(dir+name, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := edit(t, svc, dir+name, "x", "y", false, false); reason(t, err) != "FILE_PERMISSION_DENIED" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzEdit compares with replacing in memory.
func FuzzEdit(f *testing.F) {
	f.Add("a\r\nb\na\n", "a\n", "x\n", true, uint16(0))
	f.Add("aaa", "aa", "b", false, uint16(2))
	f.Add("\r\n\r\n", "\n\n", "\n", false, uint16(3))
	f.Add("a\nb\r\n", "a\r\nb\r\n", "q\r\n", true, uint16(4))
	f.Add("é\xff", "é", "x", true, uint16(1))
	svc := files.New(files.Config{})
	f.Fuzz(func(t *testing.T, content, old, new string, all bool, pad uint16) {
		if pad > 0 {
			// The content lies across the edge of a block.
			content = strings.Repeat("p", 256<<10-int(pad)%64) + content
		}
		path := t.TempDir() + "/f"
		write(t, path, content)
		resp, err := edit(t, svc, path, old, new, all, false)
		got := read(t, path)
		if err != nil {
			got = reason(t, err)
		}
		want, count := referenceEdit(content, old, new, all)
		if got != want || resp.GetOccurrences() != int64(count) {
			t.Errorf("got %.99q, %d, want %.99q, %d", got, resp.GetOccurrences(), want, count)
		}
	})
}

func referenceEdit(content, old, new string, all bool) (string, int) {
	switch {
	case old == "" || !utf8.ValidString(old) || !utf8.ValidString(new):
		return "REQUEST_INVALID", 0
	case !utf8.ValidString(content):
		return "FILE_NOT_TEXT", 0
	}
	lf := func(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }
	crlf := func(s string) string { return strings.ReplaceAll(lf(s), "\n", "\r\n") }
	same := func(s string) string { return s }
	for _, f := range []func(string) string{same, crlf, lf} {
		switch n := strings.Count(content, f(old)); {
		case n > 1 && !all:
			return "EDIT_NOT_UNIQUE", 0
		case n > 0:
			return strings.ReplaceAll(content, f(old), f(new)), n
		}
	}
	return "EDIT_TEXT_NOT_FOUND", 0
}

func readLines(t testing.TB, svc *files.Service, r *sandboxv1.ReadLinesRequest) (*sandboxv1.ReadLinesResponse, error) {
	t.Helper()
	return svc.ReadLines(called(t.Context(), nil), r)
}

func TestReadLines(t *testing.T) {
	svc, _ := start(t, files.Config{})
	dir := t.TempDir()
	kana := strings.Repeat("x", 8190) + "世\n" + "y" // a character is cut by the sniff
	big := strings.Repeat("a line of a large file\n", 100_000)
	type want struct {
		content           string
		first, last       int64
		total             int64 // -1: unset
		more, truncated   bool
		notText           bool
		offset, limit, mx int64 // the request; limit -1: unset
	}
	for i, tt := range []struct {
		file string
		want
	}{
		{"a\nb\nc\n", want{content: "a\nb\nc", first: 1, last: 3, total: 3, limit: -1}},
		{"a\r\nb\rc", want{content: "a\nb\nc", first: 1, last: 3, total: 3, limit: -1}},
		{"a\nb\nc\n", want{content: "b", first: 2, last: 2, total: 3, more: true, offset: 1, limit: 1}},
		{"a\nb\nc\n", want{content: "c", first: 3, last: 3, total: 3, offset: 2, limit: 5}},
		{"a\nb\nc\n", want{total: 3, offset: 3, limit: 5}},
		{"a\nb\nc\n", want{total: 3, offset: 99, limit: -1}},
		{"a\nb\nc\n", want{total: 3, more: true, limit: 0}},
		{"", want{limit: -1}},
		{"\n", want{content: "", first: 1, last: 1, total: 1, limit: -1}},
		{"\n\n\r\n", want{content: "\n\n", first: 1, last: 3, total: 3, limit: -1}},
		{"abc\ndef\n", want{content: "abc", first: 1, last: 1, total: 2, more: true, truncated: true, limit: -1, mx: 6}},
		{"abc\ndef\n", want{content: "abc\ndef", first: 1, last: 2, total: 2, limit: -1, mx: 7}},
		{"abcdef\ng", want{content: "abc", first: 1, last: 1, total: 2, more: true, truncated: true, limit: -1, mx: 3}},
		{"aé\n", want{content: "a", first: 1, last: 1, total: 1, truncated: true, limit: -1, mx: 2}},
		{"bin\xff\x00", want{notText: true, total: -1, limit: -1}},
		{"cut \xe4\xb8", want{notText: true, total: -1, limit: -1}},
		{"nul\x00", want{content: "nul\x00", first: 1, last: 1, total: 1, limit: -1}},
		{kana, want{content: strings.TrimSuffix(kana, "\ny"), first: 1, last: 1, total: 2, more: true, limit: 1}},
		{big, want{content: "a line of a large file", first: 1, last: 1, total: -1, more: true, limit: 1}},
		{big, want{content: "a line of a large file", first: 100_000, last: 100_000, total: 100_000, offset: 99_999, limit: 1}},
		{big, want{total: 100_000, offset: 100_000, limit: 1}},
	} {
		path := fmt.Sprintf("%s/%d", dir, i)
		write(t, path, tt.file)
		r := &sandboxv1.ReadLinesRequest{Path: path, Offset: tt.offset, MaxBytes: tt.mx}
		if tt.limit >= 0 {
			r.Limit = &tt.limit
		}
		resp, err := readLines(t, svc, r)
		if err != nil {
			t.Fatal(i, err)
		}
		got := want{
			content: string(resp.GetContent()), first: resp.GetStartLine(), last: resp.GetEndLine(), total: -1,
			more: resp.GetMore(), truncated: resp.GetTruncated(), notText: !resp.GetText(),
			offset: tt.offset, limit: tt.limit, mx: tt.mx,
		}
		if resp.TotalLines != nil {
			got.total = resp.GetTotalLines()
		}
		if got != tt.want || resp.GetSize() != int64(len(tt.file)) {
			t.Errorf("%d: got %.200v\nwant %.200v", i, got, tt.want)
		}
	}
	for want, r := range map[string]*sandboxv1.ReadLinesRequest{
		"FILE_NOT_FOUND":    {Path: dir + "/none"},
		"FILE_IS_DIRECTORY": {Path: dir},
		"FILE_NOT_REGULAR":  {Path: "/dev/zero"},
		"REQUEST_INVALID":   {Path: dir + "/0", Offset: -1},
		"REQUEST_INVALID ":  {Path: dir + "/0", Limit: ptr(int64(-1))},
		"PATH_INVALID":      {Path: "0"},
	} {
		if _, err := readLines(t, svc, r); reason(t, err) != strings.TrimSpace(want) {
			t.Errorf("%v: %v, want %s", r, err, want)
		}
	}
}

// FuzzReadLines compares with splitting in memory.
func FuzzReadLines(f *testing.F) {
	f.Add("a\r\nb\rc\n", int64(1), int64(2), int64(10), uint16(3))
	f.Add("\r\r\n\n", int64(0), int64(-1), int64(2), uint16(1))
	f.Add("é\r", int64(0), int64(1), int64(1), uint16(2))
	svc := files.New(files.Config{})
	f.Fuzz(func(t *testing.T, content string, offset, limit, most int64, pad uint16) {
		// Padding moves the content across the edges of blocks.
		content = strings.Repeat("p", 256<<10-int(pad)%512) + content
		if offset < 0 || most < 0 || !utf8.ValidString(content) {
			return
		}
		path := t.TempDir() + "/f"
		write(t, path, content)
		r := &sandboxv1.ReadLinesRequest{Path: path, Offset: offset, MaxBytes: most}
		if limit >= 0 {
			r.Limit = &limit
		}
		got, err := readLines(t, svc, r)
		if err != nil {
			t.Fatal(err)
		}
		want := referenceLines(content, offset, limit, most)
		if !bytes.Equal(got.GetContent(), want.GetContent()) || got.GetStartLine() != want.GetStartLine() || got.GetEndLine() != want.GetEndLine() ||
			got.GetTotalLines() != want.GetTotalLines() || got.GetMore() != want.GetMore() || got.GetTruncated() != want.GetTruncated() {
			t.Errorf("offset %d, limit %d, max %d:\n%s", offset, limit, most, cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)))
		}
	})
}

func referenceLines(content string, offset, limit, most int64) *sandboxv1.ReadLinesResponse {
	if most == 0 || most > 2<<20 {
		most = 512_000
	}
	text := strings.ReplaceAll(strings.ReplaceAll(content, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	resp := &sandboxv1.ReadLinesResponse{TotalLines: ptr(int64(len(lines)))}
	last := offset
	for i := offset; i < int64(len(lines)) && (limit < 0 || i-offset < limit); i++ {
		piece := lines[i]
		if i > offset {
			piece = "\n" + piece
		}
		if room := most - int64(len(resp.GetContent())); int64(len(piece)) > room {
			resp.Truncated = true
			if i == offset {
				piece = piece[:room]
				for !utf8.ValidString(piece) {
					piece = piece[:len(piece)-1]
				}
				resp.Content = []byte(piece)
				resp.StartLine, resp.EndLine, last = i+1, i+1, i+1
			}
			break
		}
		resp.Content = append(resp.GetContent(), piece...)
		resp.StartLine, resp.EndLine, last = offset+1, i+1, i+1
	}
	resp.More = int64(len(lines)) > last
	return resp
}
