package landlock

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"own/a/b", "fixed/a/x", "fixed/a/y", "fixed/b", "shut/a"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	usual := writable
	defer func() { writable, readDir = usual, os.ReadDir }()
	readDir = func(dir string) ([]os.DirEntry, error) {
		if dir == root+"/shut" {
			return nil, &fs.PathError{Op: "open", Path: dir, Err: fs.ErrPermission}
		}
		return os.ReadDir(dir)
	}
	writable = func(dir string) bool { return strings.HasPrefix(dir, root+"/own") }
	for _, tt := range []struct {
		allow, deny, want string
		exact             bool
	}{
		{"own fixed", "", "own fixed", true},
		{"", "", "own fixed shut file", true}, // all that is there: the root itself, below
		{"fixed", "fixed/b", "fixed/a", true},
		{"fixed", "fixed/a/x fixed/b", "fixed/a/y", true},
		{"fixed", "fixed/gone", "fixed/a fixed/b", true},
		{"fixed/a", "fixed", "", true},
		{"fixed/a", "fixed/a", "", true},
		{"fixed/a", "fixed/aa", "fixed/a", true},
		{"own", "own/a", "own", false},
		{"own/a/b", "own/a", "", true},
		{"own fixed", "own/a fixed/a", "own fixed/b", false},
		{"gone", "gone/a", "", true},
		{"gone fixed", "gone/a fixed/b", "fixed/a", true},
		{"shut", "", "shut", true},
		{"shut", "shut", "", true},
		{"shut", "shut/a", "shut", false}, // it cannot be listed
		{"shut fixed", "shut/a fixed/b", "shut fixed/a", false},
		{"file", "file/a", "file", false},
	} {
		under := func(list string) []string {
			paths := []string{}
			for _, p := range strings.Fields(list) {
				paths = append(paths, filepath.Join(root, p))
			}
			return paths
		}
		allow, deny := under(tt.allow), under(tt.deny)
		if tt.allow == "" {
			allow, deny = []string{root}, []string{root + "/gone"}
		}
		got, exact := expand(allow, deny)
		slices.Sort(got)
		want := under(tt.want)
		slices.Sort(want)
		if !slices.Equal(got, want) || exact != tt.exact {
			t.Errorf("allow %q, deny %q: %q, %v", tt.allow, tt.deny, got, exact)
		}
	}
}
