package files_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/sandgate/sandgate/agent/files"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const (
	literal = sandboxv1.PatternSyntax_PATTERN_SYNTAX_LITERAL
	re2     = sandboxv1.PatternSyntax_PATTERN_SYNTAX_RE2
)

func search(t testing.TB, c agentv1.AgentServiceClient, r *sandboxv1.SearchFilesRequest, policies ...*sandboxv1.AccessPolicy) (*sandboxv1.SearchFilesResponse, error) {
	t.Helper()
	return c.SearchFiles(called(t.Context(), nil, policies...), r)
}

// hits writes matches as "path:line:text" below dir.
func hits(dir string, resp *sandboxv1.SearchFilesResponse) []string {
	out := []string{}
	for _, m := range resp.GetMatches() {
		out = append(out, fmt.Sprintf("%s:%d:%s", strings.TrimPrefix(m.GetPath(), dir), m.GetLine(), m.GetText()))
	}
	return out
}

func TestSearch(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	for path, content := range map[string]string{
		"/a.txt": "one\ntwo needle\nthree\n", "/a-b.txt": "needle", "/a/x.txt": "needle\r\nNEEDLE\r\nend needle\r\n",
		"/a/.git/config": "needle\n", "/a/.hid": "needle\n", "/b/deep/er/y.py": "no\n\n\nneedle needle\n",
		"/bin": "x\x00needle\n", "/utf8.txt": "Käse straße\nKÄSE\n", "/empty": "", "/dots": "a.b\nacb\n",
		"/notext": "\xff\xfe needle\n",
	} {
		write(t, dir+path, content)
	}
	for _, err := range []error{os.Symlink("a.txt", dir+"/link"), os.Symlink(".", dir+"/loop"), unix.Mkfifo(dir+"/fifo", 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	all := []string{
		"/a-b.txt:1:needle", "/a.txt:2:two needle", "/a/.git/config:1:needle", "/a/.hid:1:needle", "/a/x.txt:1:needle",
		"/a/x.txt:3:end needle", "/b/deep/er/y.py:4:needle needle", "/notext:1:\xff\xfe needle",
	}
	tests := []struct {
		name string
		r    *sandboxv1.SearchFilesRequest
		want []string
	}{
		{"literal", &sandboxv1.SearchFilesRequest{Pattern: "needle"}, all},
		{"nothing", &sandboxv1.SearchFilesRequest{Pattern: "absent"}, []string{}},
		{"a literal is no expression", &sandboxv1.SearchFilesRequest{Pattern: "a.b", Syntax: literal}, []string{"/dots:1:a.b"}},
		{"an expression", &sandboxv1.SearchFilesRequest{Pattern: "a.b|^three$", Syntax: re2}, []string{"/a.txt:3:three", "/dots:1:a.b", "/dots:2:acb"}},
		{"ends at a line", &sandboxv1.SearchFilesRequest{Pattern: `end needle$`, Syntax: re2}, []string{"/a/x.txt:3:end needle"}},
		{"space is not a line end", &sandboxv1.SearchFilesRequest{Pattern: `one\s+two`, Syntax: re2}, []string{}},
		{"empty lines", &sandboxv1.SearchFilesRequest{Pattern: `^$`, Syntax: re2}, []string{"/b/deep/er/y.py:2:", "/b/deep/er/y.py:3:"}},
		{"ignoring case", &sandboxv1.SearchFilesRequest{Pattern: "NeEdLe", IgnoreCase: true, Glob: "*.txt"},
			[]string{"/a-b.txt:1:needle", "/a.txt:2:two needle", "/a/x.txt:1:needle", "/a/x.txt:2:NEEDLE", "/a/x.txt:3:end needle"}},
		{"ignoring case beyond ASCII", &sandboxv1.SearchFilesRequest{Pattern: "käse", IgnoreCase: true}, []string{"/utf8.txt:1:Käse straße", "/utf8.txt:2:KÄSE"}},
		{"an expression ignoring case", &sandboxv1.SearchFilesRequest{Pattern: "^k.se$", IgnoreCase: true, Syntax: re2}, []string{"/utf8.txt:2:KÄSE"}},
		{"by name", &sandboxv1.SearchFilesRequest{Pattern: "needle", Glob: "*.{py,txt}"},
			[]string{"/a-b.txt:1:needle", "/a.txt:2:two needle", "/a/x.txt:1:needle", "/a/x.txt:3:end needle", "/b/deep/er/y.py:4:needle needle"}},
		{"by path", &sandboxv1.SearchFilesRequest{Pattern: "needle", Glob: "b/**/*.py"}, []string{"/b/deep/er/y.py:4:needle needle"}},
		{"without a directory", &sandboxv1.SearchFilesRequest{Pattern: "needle", ExcludeDirs: []string{".git", "deep"}},
			slices.DeleteFunc(slices.Clone(all), func(s string) bool { return strings.Contains(s, ".git/") || strings.Contains(s, "deep") })},
		{"rooted at an excluded one", &sandboxv1.SearchFilesRequest{Pattern: "needle", Path: dir + "/a/.git", ExcludeDirs: []string{".git"}}, []string{"/a/.git/config:1:needle"}},
		{"binary", &sandboxv1.SearchFilesRequest{Pattern: "needle", Glob: "bin", IncludeBinary: true}, []string{"/bin:1:x\x00needle"}},
		{"not larger than", &sandboxv1.SearchFilesRequest{Pattern: "needle", MaxFileBytes: 7}, []string{"/a-b.txt:1:needle", "/a/.git/config:1:needle", "/a/.hid:1:needle"}},
		{"one file", &sandboxv1.SearchFilesRequest{Pattern: "needle", Path: dir + "/a/x.txt"}, []string{"/a/x.txt:1:needle", "/a/x.txt:3:end needle"}},
		{"one file, by link", &sandboxv1.SearchFilesRequest{Pattern: "needle", Path: dir + "/link"}, []string{"/link:2:two needle"}},
		{"one file, other name", &sandboxv1.SearchFilesRequest{Pattern: "needle", Path: dir + "/a/x.txt", Glob: "*.py"}, []string{}},
		{"path as it was given", &sandboxv1.SearchFilesRequest{Pattern: "needle", Path: dir + "/./a//", Glob: "x*"}, []string{"/./a/x.txt:1:needle", "/./a/x.txt:3:end needle"}},
	}
	for _, tt := range tests {
		if tt.r.GetPath() == "" {
			tt.r.Path = dir
		}
		resp, err := search(t, c, tt.r)
		if err != nil || resp.GetTruncated() {
			t.Errorf("%s: %v, truncated: %v", tt.name, err, resp.GetTruncationReason())
		}
		if diff := cmp.Diff(tt.want, hits(dir, resp)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}

	for max, cut := range map[int32]bool{1: true, 7: true, 8: false, 9: false} {
		resp, err := search(t, c, &sandboxv1.SearchFilesRequest{Pattern: "needle", Path: dir, MaxMatches: max})
		if err != nil || resp.GetTruncated() != cut || !cmp.Equal(hits(dir, resp), all[:min(int(max), len(all))]) {
			t.Errorf("at most %d: %v, %v", max, resp, err)
		}
		if cut && resp.GetTruncationReason() != sandboxv1.TruncationReason_TRUNCATION_REASON_COUNT {
			t.Errorf("at most %d: %v", max, resp.GetTruncationReason())
		}
	}
	for want, r := range map[string]*sandboxv1.SearchFilesRequest{
		"REQUEST_INVALID ":  {Path: dir},
		"PATTERN_INVALID ":  {Path: dir, Pattern: "(", Syntax: re2},
		"PATTERN_INVALID  ": {Path: dir, Pattern: "a\nb"},
		"PATTERN_INVALID":   {Path: dir, Pattern: "x", Glob: "../*"},
		"REQUEST_INVALID":   {Path: dir, Pattern: "x", ContextBefore: 21},
		"FILE_NOT_FOUND":    {Path: dir + "/missing", Pattern: "x"},
		"FILE_NOT_REGULAR":  {Path: dir + "/fifo", Pattern: "x"},
		"PATH_INVALID":      {Path: "a", Pattern: "x"},
	} {
		if _, err := search(t, c, r); reason(t, err) != strings.TrimSpace(want) {
			t.Errorf("%v: %v, want %s", r, err, want)
		}
	}
	resp, err := search(t, c, &sandboxv1.SearchFilesRequest{Pattern: "needle", Path: dir}, &sandboxv1.AccessPolicy{ReadDenyPrefixes: []string{dir + "/a"}})
	if err != nil || resp.GetTruncated() || len(resp.GetMatches()) != 4 {
		t.Errorf("under a policy: %v, %v", resp, err)
	}
	resp, err = search(t, c, &sandboxv1.SearchFilesRequest{Pattern: "needle", Path: "/a", Glob: "x*"}, &sandboxv1.AccessPolicy{RootDir: dir, Virtual: true})
	if err != nil || !cmp.Equal(hits("", resp), []string{"/a/x.txt:1:needle", "/a/x.txt:3:end needle"}) {
		t.Errorf("under a virtual root: %v, %v", resp, err)
	}
}

func TestSearchContext(t *testing.T) {
	_, c := start(t, files.Config{})
	path := t.TempDir() + "/f"
	var lines []string
	for i := range 3000 {
		lines = append(lines, fmt.Sprintf("line %d %s", i, strings.Repeat("x", i%500)))
	}
	for _, end := range []string{"", "\n"} {
		write(t, path, strings.Join(lines, "\n")+end)
		for _, want := range []int{0, 1, 7, 1500, 2990, 2999} {
			resp, err := search(t, c, &sandboxv1.SearchFilesRequest{
				Pattern: fmt.Sprintf("line %d ", want), Path: path, ContextBefore: 20, ContextAfter: 15,
			})
			if err != nil || len(resp.GetMatches()) != 1 {
				t.Fatalf("line %d: %v, %v", want, resp, err)
			}
			m := resp.GetMatches()[0]
			before, after := []string{}, []string{}
			for _, b := range m.GetBefore() {
				before = append(before, string(b))
			}
			for _, b := range m.GetAfter() {
				after = append(after, string(b))
			}
			if diff := cmp.Diff(append([]string{}, lines[max(0, want-20):want]...), before); diff != "" || m.GetLine() != int64(want+1) {
				t.Errorf("before line %d: %s", want, diff)
			}
			if diff := cmp.Diff(append([]string{}, lines[want+1:min(len(lines), want+16)]...), after); diff != "" {
				t.Errorf("after line %d: %s", want, diff)
			}
		}
	}
}

// TestSearchLinesLongerThanAnyBuffer checks lines that do not fit any buffer.
func TestSearchLinesLongerThanAnyBuffer(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	long := strings.Repeat("0123456789", 350_000)
	for name, at := range map[string]int{"first": 0, "edge": 1<<20 - 3, "edge2": 1<<20 + 1<<18 - 2, "deep": 3_000_000, "last": len(long)} {
		write(t, dir+"/"+name, "short\n"+long[:at]+"needle"+long[at:]+"\nneedle again\n")
	}
	write(t, dir+"/none", long+"\n"+long+"\n"+strings.Repeat("a", 300_000)+" needle\n")
	for _, syntax := range []sandboxv1.PatternSyntax{literal, re2} {
		for _, fold := range []bool{false, true} {
			resp, err := search(t, c, &sandboxv1.SearchFilesRequest{Pattern: "needle", Path: dir, Syntax: syntax, IgnoreCase: fold})
			if err != nil || resp.GetTruncated() {
				t.Fatal(err, resp.GetTruncationReason())
			}
			var got []string
			for _, m := range resp.GetMatches() {
				got = append(got, fmt.Sprintf("%s:%d:%d", filepath.Base(m.GetPath()), m.GetLine(), len(m.GetText())))
			}
			want := []string{
				"deep:2:65536", "deep:3:12", "edge:2:65536", "edge:3:12", "edge2:2:65536", "edge2:3:12", "first:2:65536", "first:3:12",
				"last:2:65536", "last:3:12", "none:3:65536",
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%v, ignoring case %v (-want +got):\n%s", syntax, fold, diff)
			}
		}
	}
}

func TestSearchBounds(t *testing.T) {
	_, c := start(t, files.Config{SearchTime: time.Nanosecond, GlobTime: time.Nanosecond})
	dir := t.TempDir()
	write(t, dir+"/f", "needle\n")
	resp, err := search(t, c, &sandboxv1.SearchFilesRequest{Pattern: "needle", Path: dir})
	if err != nil || resp.GetTruncationReason() != sandboxv1.TruncationReason_TRUNCATION_REASON_TIME {
		t.Errorf("search without time: %v, %v", resp, err)
	}
	got, err := globFiles(t, c, &sandboxv1.GlobFilesRequest{Pattern: "*", Path: dir})
	if err != nil || got.GetTruncationReason() != sandboxv1.TruncationReason_TRUNCATION_REASON_TIME {
		t.Errorf("glob without time: %v, %v", got, err)
	}

	_, c = start(t, files.Config{})
	write(t, dir+"/big", strings.Repeat(strings.Repeat("x", 999)+"\n", 20_000))
	resp, err = search(t, c, &sandboxv1.SearchFilesRequest{Pattern: "x", Path: dir, ContextAfter: 3})
	if size := proto.Size(resp); err != nil || resp.GetTruncationReason() != sandboxv1.TruncationReason_TRUNCATION_REASON_COUNT || size > 3<<20+1000 || size < 2<<20 {
		t.Errorf("%d matches, %d bytes, %v, %v", len(resp.GetMatches()), size, resp.GetTruncationReason(), err)
	}
}

func TestUnreadableTree(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	write(t, dir+"/ok", "needle")
	write(t, dir+"/secret", "needle")
	write(t, dir+"/closed/f", "needle")
	for path, mode := range map[string]os.FileMode{"/secret": 0, "/closed": 0} {
		if err := os.Chmod(dir+path, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(dir+"/closed", 0o755) })
	unreadable := sandboxv1.TruncationReason_TRUNCATION_REASON_UNREADABLE
	resp, err := search(t, c, &sandboxv1.SearchFilesRequest{Pattern: "needle", Path: dir})
	if err != nil || resp.GetTruncationReason() != unreadable || !cmp.Equal(hits(dir, resp), []string{"/ok:1:needle"}) {
		t.Errorf("search: %v, %v", resp, err)
	}
	got, err := globFiles(t, c, &sandboxv1.GlobFilesRequest{Pattern: "*", Path: dir})
	if err != nil || got.GetTruncationReason() != unreadable || !cmp.Equal(found(dir, got), []string{"/ok", "/secret"}) {
		t.Errorf("glob: %v, %v", got, err)
	}
	if _, err := globFiles(t, c, &sandboxv1.GlobFilesRequest{Pattern: "*", Path: dir + "/closed"}); reason(t, err) != "FILE_PERMISSION_DENIED" {
		t.Errorf("a closed root: %v", err)
	}
}
