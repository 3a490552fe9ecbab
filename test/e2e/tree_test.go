package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// The size of the tree, and the most that one reply holds.
const (
	treeFiles  = 100_000
	wideFiles  = 20_000
	answerRows = 10_000
	treeSeed   = 100
)

// tree is a file system as a plain map: path below the root to content.
type tree map[string]string

// growTree creates a tree from a seed. A fifth of the files are in one directory.
func growTree(seed int64) tree {
	rng := rand.New(rand.NewSource(seed))
	words := []string{"foo", "bar", "Needle", "needle", "qux", "", "a b", ".x", "é", "日本"}
	parts := []string{"a", "b", "a-b", ".git", "src", "node_modules", "z.d", "0"}
	endings := []string{"py", "js", "txt"}
	files := make(tree, treeFiles)
	for i := range treeFiles {
		var path strings.Builder
		if i < wideFiles {
			path.WriteString("wide/")
		} else {
			for range rng.Intn(5) {
				path.WriteString(parts[rng.Intn(len(parts))] + "/")
			}
		}
		fmt.Fprintf(&path, "%s%d.%s", []string{"", "", ".", "x"}[rng.Intn(4)], i, endings[rng.Intn(3)])
		var content strings.Builder
		for range rng.Intn(12) {
			for range rng.Intn(5) {
				content.WriteString(words[rng.Intn(len(words))] + " ")
			}
			content.WriteString([]string{"\n", "\n", "\n", "\r\n"}[rng.Intn(4)])
		}
		if rng.Intn(4) == 0 {
			content.WriteString("no end")
		}
		files[path.String()] = content.String()
	}
	return files
}

// lines returns a text's lines without their ends.
func lines(content string) []string {
	if content == "" {
		return nil
	}
	all := strings.Split(strings.TrimSuffix(content, "\n"), "\n")
	for i := range all {
		all[i] = strings.TrimSuffix(all[i], "\r")
	}
	return all
}

// base is a path's last segment, and hidden whether a name begins with a dot.
func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

func hidden(name string) bool { return strings.HasPrefix(name, ".") }

// TestFileCallsOnALargeTreeMatchTheReference compares the results of the file calls for 100 000 files, through the whole
// stack, with those of the plainest code that could compute them.
func TestFileCallsOnALargeTreeMatchTheReference(t *testing.T) {
	need(t)
	client, err := sandgate.NewClient(t.Context(), sandgate.WithAddress(shared.address))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	sb := client.Sandbox(shared.create(t))
	const root = "/workspace/tree"
	files := growTree(treeSeed)
	paths := slices.Sorted(maps.Keys(files))
	for some := range slices.Chunk(paths, 10_000) {
		batch := make([]sandgate.File, len(some))
		for i, path := range some {
			batch[i] = sandgate.File{Path: root + "/" + path, Content: strings.NewReader(files[path])}
		}
		results, err := sb.Upload(t.Context(), batch...)
		if err != nil || len(results) != len(batch) {
			t.Fatalf("upload: %d results, %v", len(results), err)
		}
		for i, r := range results {
			if r.Err != nil || r.Path != batch[i].Path || r.Size != int64(len(files[some[i]])) {
				t.Fatalf("upload of %s: %+v", batch[i].Path, r)
			}
		}
	}

	t.Run("glob", func(t *testing.T) { treeGlob(t, sb, root, paths) })
	t.Run("grep", func(t *testing.T) { treeGrep(t, sb, root, files, paths) })
	t.Run("ls", func(t *testing.T) { treeList(t, sb, root, files) })
	t.Run("read", func(t *testing.T) { treeRead(t, sb, root, files, paths) })
	t.Run("edit", func(t *testing.T) { treeEdit(t, sb, root, files, paths) })
	t.Run("grep after edits", func(t *testing.T) { treeGrep(t, sb, root, files, paths) })
}

func treeGlob(t *testing.T, sb *sandgate.Sandbox, root string, paths []string) {
	open := func(path string) bool { // "**" enters no hidden directory, "*" meets no hidden name
		return !slices.ContainsFunc(strings.Split(path, "/"), hidden)
	}
	for pattern, match := range map[string]func(path string) bool{
		"*7.py":     func(p string) bool { return strings.HasSuffix(p, "7.py") && !hidden(base(p)) },
		"**/*77.js": func(p string) bool { return strings.HasSuffix(p, "77.js") && open(p) },
		"**/*":      open,
		"src/**/x*.txt": func(p string) bool {
			return strings.HasPrefix(p, "src/") && strings.HasPrefix(base(p), "x") && strings.HasSuffix(p, ".txt") && open(p)
		},
		"wide/*[05].??":       regexp.MustCompile(`^wide/([^./][^/]*)?[05]\...$`).MatchString,
		"/*":                  func(p string) bool { return !strings.Contains(p, "/") && !hidden(p) },
		"{a,b}/*/*.{py,none}": regexp.MustCompile(`^[ab]/[^./][^/]*/[^./][^/]*\.py$`).MatchString,
		".git/.*":             regexp.MustCompile(`^\.git/\.[^/]*$`).MatchString,
		"nothing/**":          func(string) bool { return false },
	} {
		want := slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return !match(p) })
		got, err := sb.Glob(t.Context(), root, pattern, sandgate.GlobRequest{})
		if err != nil {
			t.Fatal(pattern, err)
		}
		if got.GetTruncated() != (len(want) > answerRows) {
			t.Errorf("%s: truncated %v (%v) of %d", pattern, got.GetTruncated(), got.GetTruncationReason(), len(want))
		}
		var found []string
		for _, f := range got.GetFiles() {
			found = append(found, strings.TrimPrefix(f.GetPath(), root+"/"))
		}
		if diff := cmp.Diff(nilIfEmpty(want[:min(len(want), answerRows)]), found); diff != "" {
			t.Errorf("%s (-want +got):\n%.1500s", pattern, diff)
		}
	}
}

func nilIfEmpty(s []string) []string {
	if len(s) == 0 {
		return nil
	}
	return s
}

func treeGrep(t *testing.T, sb *sandgate.Sandbox, root string, files tree, paths []string) {
	for name, tt := range map[string]struct {
		pattern string
		r       sandgate.SearchRequest
		re      string
		in      func(path string) bool
	}{
		"literal":  {"foo needle bar", sandgate.SearchRequest{}, "foo needle bar", nil},
		"absent":   {"not in there", sandgate.SearchRequest{}, "not in there", nil},
		"folded":   {"NEEDLE NEEDLE", sandgate.SearchRequest{IgnoreCase: true}, "(?i)needle needle", nil},
		"regexp":   {"^(foo|日本) +é (bar|qux) ", sandgate.SearchRequest{Regexp: true}, "^(foo|日本) +é (bar|qux) ", nil},
		"too many": {"e", sandgate.SearchRequest{}, "e", nil},
		"glob":     {"needle qux", sandgate.SearchRequest{Glob: "*3.py"}, "needle qux", func(p string) bool { return strings.HasSuffix(p, "3.py") && !hidden(base(p)) }},
		"excluded": {"needle qux", sandgate.SearchRequest{ExcludeDirs: []string{"node_modules", ".git"}}, "needle qux", func(p string) bool {
			parts := strings.Split(p, "/")
			return !slices.ContainsFunc(parts[:len(parts)-1], func(s string) bool { return s == "node_modules" || s == ".git" })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			re := regexp.MustCompile(tt.re)
			var want []string
			for _, path := range paths {
				if tt.in != nil && !tt.in(path) {
					continue
				}
				for i, line := range lines(files[path]) {
					if re.MatchString(line) {
						want = append(want, fmt.Sprintf("%s:%d:%s", path, i+1, line))
					}
				}
			}
			got, err := sb.Search(t.Context(), root, tt.pattern, tt.r)
			if err != nil || got.GetTruncated() != (len(want) > answerRows) {
				t.Fatalf("%v, truncated %v (%v) of %d", err, got.GetTruncated(), got.GetTruncationReason(), len(want))
			}
			var found []string
			for _, m := range got.GetMatches() {
				found = append(found, fmt.Sprintf("%s:%d:%s", strings.TrimPrefix(m.GetPath(), root+"/"), m.GetLine(), m.GetText()))
			}
			if diff := cmp.Diff(want[:min(len(want), answerRows)], found); diff != "" {
				t.Errorf("(-want +got):\n%.1500s", diff)
			}
		})
	}
}

func treeList(t *testing.T, sb *sandgate.Sandbox, root string, files tree) {
	children := map[string]map[string]int64{} // directory to name to size; -1: a directory
	for path, content := range files {
		size := int64(len(content))
		for path != "" {
			dir, name := "", path
			if i := strings.LastIndexByte(path, '/'); i >= 0 {
				dir, name = path[:i], path[i+1:]
			}
			if children[dir] == nil {
				children[dir] = map[string]int64{}
			}
			children[dir][name] = size
			path, size = dir, -1
		}
	}
	for _, dir := range []string{"", "wide", "a", "src/node_modules", ".git/z.d", "0/0/0"} {
		got := map[string]int64{}
		for info, err := range sb.List(t.Context(), strings.TrimSuffix(root+"/"+dir, "/")) {
			if err != nil {
				t.Fatal(dir, err)
			}
			name := base(info.GetPath())
			if _, twice := got[name]; twice {
				t.Errorf("%s is listed twice", info.GetPath())
			}
			if got[name] = info.GetSize(); children[dir][name] == -1 {
				got[name] = -1
			}
		}
		if diff := cmp.Diff(children[dir], got); diff != "" {
			t.Errorf("%q (-want +got):\n%.1500s", dir, diff)
		}
	}
}

func treeRead(t *testing.T, sb *sandgate.Sandbox, root string, files tree, paths []string) {
	rng := rand.New(rand.NewSource(treeSeed))
	for range 500 {
		path := paths[rng.Intn(len(paths))]
		all := lines(files[path])
		offset, limit := rng.Intn(len(all)+1), 1+rng.Intn(12)
		got, err := sb.Read(t.Context(), root+"/"+path, sandgate.ReadRequest{Offset: int64(offset), Limit: int64(limit)})
		if err != nil {
			t.Fatal(path, err)
		}
		end := min(offset+limit, len(all))
		if want := strings.Join(all[offset:end], "\n"); string(got.GetContent()) != want || got.GetMore() != (end < len(all)) {
			t.Errorf("%s, %d lines from %d: %q, more %v; want %q of %d", path, limit, offset, got.GetContent(), got.GetMore(), want, len(all))
		}
	}
}

// treeEdit edits files in the sandbox and in the map, and compares the bytes.
func treeEdit(t *testing.T, sb *sandgate.Sandbox, root string, files tree, paths []string) {
	rng := rand.New(rand.NewSource(treeSeed + 1))
	edited := map[string]bool{}
	var once, several, none int
	for range 500 {
		path := paths[rng.Intn(len(paths))]
		before, all := files[path], rng.Intn(2) == 0
		const from, to = "needle", "thread needle thread"
		count := strings.Count(before, from)
		got, err := sb.Edit(t.Context(), root+"/"+path, from, to, all)
		switch {
		case count == 0:
			none++
			if !errors.Is(err, sandgate.Reason("EDIT_TEXT_NOT_FOUND")) {
				t.Errorf("%s holds no %q: %v", path, from, err)
			}
			continue
		case count > 1 && !all:
			several++
			if !errors.Is(err, sandgate.Reason("EDIT_NOT_UNIQUE")) {
				t.Errorf("%s holds %d of %q: %v", path, count, from, err)
			}
			continue
		}
		once++
		after := strings.ReplaceAll(before, from, to)
		if err != nil || got.GetOccurrences() != int64(count) || got.GetSize() != int64(len(after)) {
			t.Errorf("%s: %v, %v; want %d occurrences", path, got, err, count)
		}
		files[path], edited[path] = after, true
	}
	if once < 50 || several < 20 || none < 50 {
		t.Fatalf("too few of a kind: %d, %d, %d", once, several, none)
	}
	for path := range edited {
		var content bytes.Buffer
		if _, err := sb.DownloadFile(t.Context(), root+"/"+path, &content, nil); err != nil || content.String() != files[path] {
			t.Errorf("%s after the edit: %q, %v; want %q", path, content.String(), err, files[path])
		}
	}
}
