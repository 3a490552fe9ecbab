package files_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandgate/sandgate/agent/files"
	"github.com/sandgate/sandgate/agent/files/glob"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// forest makes a tree from a seed.
func forest(t testing.TB, dir string, seed int64, count int) {
	t.Helper()
	rng := rand.New(rand.NewSource(seed))
	words := []string{"foo", "bar", "Needle", "needle", "qux", "", "a b", ".x"}
	parts := []string{"a", "b", "a-b", ".git", "src", "node_modules", "z.d", "0"}
	for i := range count {
		path := dir
		for range rng.Intn(5) {
			path += "/" + parts[rng.Intn(len(parts))]
		}
		path += fmt.Sprintf("/%s%d.%s", []string{"", ".", "x"}[rng.Intn(3)], i, []string{"py", "js", "txt"}[rng.Intn(3)])
		var content strings.Builder
		for range rng.Intn(30) {
			for range rng.Intn(6) {
				content.WriteString(words[rng.Intn(len(words))] + " ")
			}
			content.WriteString([]string{"\n", "\n", "\r\n"}[rng.Intn(3)])
		}
		write(t, path, content.String())
	}
}

// TestSearchAndGlobMatchTheReference compares search and glob with the plainest code that
// could do the same.
func TestSearchAndGlobMatchTheReference(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	forest(t, dir, 7, 800)
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	for _, pattern := range []string{"*.py", "**/*.js", "src/**", "/*", "a/*/x*", "{a,b}/**/[0-9]*.txt", ".git/**", "**/.git/*"} {
		p, err := glob.Compile(pattern, false)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{}
		for _, path := range all {
			if p.Match(strings.TrimPrefix(path, dir+"/")) {
				want = append(want, strings.TrimPrefix(path, dir))
			}
		}
		resp, err := globFiles(t, c, &sandboxv1.GlobFilesRequest{Pattern: pattern, Path: dir})
		if err != nil || resp.GetTruncated() {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, found(dir, resp)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", pattern, diff)
		}
	}
	for _, tt := range []struct {
		r  *sandboxv1.SearchFilesRequest
		re string
	}{
		{&sandboxv1.SearchFilesRequest{Pattern: "needle"}, "needle"},
		{&sandboxv1.SearchFilesRequest{Pattern: "NEEDLE", IgnoreCase: true}, "(?i)needle"},
		{&sandboxv1.SearchFilesRequest{Pattern: "foo (bar|qux) +needle", Syntax: re2, MaxMatches: 10000}, "foo (bar|qux) +needle"},
		{&sandboxv1.SearchFilesRequest{Pattern: "^(foo |bar )+$", Syntax: re2}, "^(foo |bar )+$"},
		{&sandboxv1.SearchFilesRequest{Pattern: "needle", MaxMatches: 100}, "needle"},
	} {
		re := regexp.MustCompile(tt.re)
		want := []string{}
		for _, path := range all {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			lines := bytes.Split(b, []byte("\n"))
			if len(lines[len(lines)-1]) == 0 {
				lines = lines[:len(lines)-1]
			}
			for i, line := range lines {
				if line = bytes.TrimSuffix(line, []byte("\r")); re.Match(line) {
					want = append(want, fmt.Sprintf("%s:%d:%s", strings.TrimPrefix(path, dir), i+1, line))
				}
			}
		}
		limit := 10_000
		if tt.r.GetMaxMatches() > 0 {
			limit = int(tt.r.GetMaxMatches())
		}
		tt.r.Path = dir
		for range 3 { // the order must not depend on luck
			resp, err := search(t, c, tt.r)
			if err != nil || resp.GetTruncated() != (len(want) > limit) {
				t.Fatal(err, resp.GetTruncationReason(), len(want))
			}
			if diff := cmp.Diff(want[:min(len(want), limit)], hits(dir, resp)); diff != "" {
				t.Errorf("%v (-want +got):\n%.2000s", tt.r, diff)
			}
		}
	}
}

func BenchmarkSearch(b *testing.B) {
	_, c := start(b, files.Config{})
	dir := b.TempDir()
	forest(b, dir, 1, 20_000)
	for name, r := range map[string]*sandboxv1.SearchFilesRequest{
		"absent":     {Pattern: "not in there"},
		"absentFold": {Pattern: "not in there", IgnoreCase: true},
		"regexp":     {Pattern: "not [a-z]+ there", Syntax: re2},
		"common":     {Pattern: "needle"},
	} {
		b.Run(name, func(b *testing.B) {
			r.Path = dir
			for b.Loop() {
				if _, err := search(b, c, r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("oneBigFile", func(b *testing.B) {
		big := dir + "/big"
		write(b, big, strings.Repeat("some text that is not what is looked for\n", 256<<20/41))
		b.SetBytes(256 << 20)
		for b.Loop() {
			if _, err := search(b, c, &sandboxv1.SearchFilesRequest{Pattern: "needle", Path: big}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkGlob(b *testing.B) {
	_, c := start(b, files.Config{})
	dir := b.TempDir()
	forest(b, dir, 1, 20_000)
	for b.Loop() {
		if _, err := globFiles(b, c, &sandboxv1.GlobFilesRequest{Pattern: "**/*.py", Path: dir}); err != nil {
			b.Fatal(err)
		}
	}
}
