package build

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// writeFiles writes the files of a context. A name that ends with "/" is a directory, a text
// that begins with "-> " is a link.
func writeFiles(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		at := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		target, link := strings.CutPrefix(files[name], "-> ")
		switch {
		case strings.HasSuffix(name, "/"):
			err = errors.Join(err, os.MkdirAll(at, 0o755))
		case link:
			err = errors.Join(err, os.Symlink(target, at))
		default:
			err = errors.Join(err, os.WriteFile(at, []byte(files[name]), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// hashOf returns the hash of a context.
func hashOf(t testing.TB, dir, file string) string {
	t.Helper()
	s, err := take(t.Context(), dir, file)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	return s.hash
}

// entries returns what the archive of a context has.
func entries(t testing.TB, dir, file string) map[string]string {
	t.Helper()
	s, err := take(t.Context(), dir, file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	found := make(map[string]string)
	for r := tar.NewReader(s.file); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = string(data)
		if h.Typeflag == tar.TypeSymlink {
			found[h.Name] = "-> " + h.Linkname
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s belongs to %d:%d %q", h.Name, h.Uid, h.Gid, h.Uname)
		}
	}
}

func TestContextHasWhatDockerignoreLeaves(t *testing.T) {
	t.Parallel()
	all := map[string]string{
		"Dockerfile": "FROM scratch\n", "a.txt": "a", "b.log": "b", "deep/c.log": "c", "deep/keep.log": "k",
		"node_modules/x/y.js": "y", "empty/": "", "link": "-> a.txt", "away": "-> /etc/passwd",
	}
	for _, c := range []struct {
		name, ignore string
		want         []string
	}{
		{"none", "", []string{"Dockerfile", "a.txt", "b.log", "deep/", "deep/c.log", "deep/keep.log", "node_modules/", "node_modules/x/", "node_modules/x/y.js", "empty/", "link", "away"}},
		{"patterns", "# logs\n**/*.log\nnode_modules\n", []string{"Dockerfile", ".dockerignore", "a.txt", "deep/", "empty/", "link", "away"}},
		{"exceptions", "*\n!deep/keep.log\n", []string{"Dockerfile", ".dockerignore", "deep/keep.log"}},
		{"its own files", "Dockerfile\n.dockerignore\n*.txt\ndeep\nnode_modules\nempty\n*.log\n", []string{"Dockerfile", ".dockerignore", "link", "away"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			writeFiles(t, dir, all)
			if c.ignore != "" {
				writeFiles(t, dir, map[string]string{".dockerignore": c.ignore})
			}
			got := entries(t, dir, "")
			slices.Sort(c.want)
			if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, c.want) {
				t.Errorf("%q instead of %q", names, c.want)
			}
			for name, text := range got {
				if want, ok := all[name]; ok && text != want {
					t.Errorf("%s has %q instead of %q", name, text, want)
				}
			}
		})
	}
}

// Only what reaches the image changes the hash.
func TestHashOfContext(t *testing.T) {
	t.Parallel()
	files := map[string]string{"Dockerfile": "FROM scratch\n", "dir/a": "1", "link": "-> dir/a", ".dockerignore": "*.tmp\n"}
	setUp := func(t *testing.T) string {
		dir := t.TempDir()
		writeFiles(t, dir, files)
		return dir
	}
	base := hashOf(t, setUp(t), "")
	for _, c := range []struct {
		name   string
		same   bool
		change func(dir string) error
	}{
		{"nothing", true, func(string) error { return nil }},
		{"times", true, func(dir string) error {
			return os.Chtimes(filepath.Join(dir, "dir/a"), time.Unix(1, 0), time.Unix(1, 0))
		}},
		{"owner", true, func(dir string) error { return os.Chown(filepath.Join(dir, "dir/a"), 12, 34) }},
		{"ignored file", true, func(dir string) error { return os.WriteFile(filepath.Join(dir, "x.tmp"), nil, 0o644) }},
		{"pipe", true, func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644) }},
		{"content", false, func(dir string) error { return os.WriteFile(filepath.Join(dir, "dir/a"), []byte("2"), 0o644) }},
		{"mode", false, func(dir string) error { return os.Chmod(filepath.Join(dir, "dir/a"), 0o755) }},
		{"name", false, func(dir string) error { return os.Rename(filepath.Join(dir, "dir/a"), filepath.Join(dir, "dir/b")) }},
		{"empty directory", false, func(dir string) error { return os.Mkdir(filepath.Join(dir, "new"), 0o755) }},
		{"link", false, func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "link")), os.Symlink("dir", filepath.Join(dir, "link")))
		}},
		{"Dockerfile", false, func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM scratch\nUSER 1\n"), 0o644)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := setUp(t)
			if err := c.change(dir); err != nil {
				t.Fatal(err)
			}
			if same := hashOf(t, dir, "") == base; same != c.same {
				t.Errorf("the hash is the same: %t", same)
			}
		})
	}
}

// Contexts with equal hashes have equal files.
func TestEqualHashesMeanEqualContexts(t *testing.T) {
	t.Parallel()
	name := rapid.StringMatching(`[ab\n"%]{1,3}(/[ab])?`)
	seen := make(map[string]map[string]string)
	rapid.Check(t, func(r *rapid.T) {
		files := rapid.MapOfN(name, rapid.StringMatching(`[01\n]{0,3}`), 0, 3).Draw(r, "files")
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			r.Fatal(err)
		}
		files["Dockerfile"] = "FROM scratch\n"
		for _, file := range slices.Sorted(maps.Keys(files)) {
			at := filepath.Join(dir, file)
			if os.MkdirAll(filepath.Dir(at), 0o755) != nil || os.WriteFile(at, []byte(files[file]), 0o644) != nil {
				delete(files, file) // it is below a file, or has the name of a directory
			}
		}
		for file := range files {
			if _, err := os.Lstat(filepath.Join(dir, file)); err != nil {
				delete(files, file)
			}
		}
		hash := hashOf(t, dir, "")
		if other, ok := seen[hash]; ok && !maps.Equal(other, files) {
			r.Fatalf("%q and %q have one hash", other, files)
		}
		seen[hash] = files
	})
}

func TestDockerfileOfContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{
		"src/Dockerfile": "FROM scratch\n", "src/sub/Other": "FROM scratch\n", "outside": "FROM scratch\n", "src/directory/": "",
		"src/big": strings.Repeat("#", maxText+1), "link": "-> src", "src/away": "-> ../outside",
	})
	src := filepath.Join(dir, "src")
	for _, c := range []struct {
		dir, file, want string // empty: ErrInput
	}{
		{src, "", "Dockerfile"},
		{src, filepath.Join(src, "sub/Other"), "sub/Other"},
		{filepath.Join(dir, "link"), filepath.Join(src, "sub/Other"), "sub/Other"},
		{src, filepath.Join(dir, "link", "sub/Other"), "sub/Other"},
		{src, filepath.Join(dir, "outside"), ""},
		{src, filepath.Join(src, "away"), ""},
		{src, filepath.Join(src, "absent"), ""},
		{src, filepath.Join(src, "directory"), ""},
		{src, filepath.Join(src, "big"), ""},
		{dir, "", ""},
		{filepath.Join(dir, "absent"), "", ""},
		{filepath.Join(dir, "outside"), "", ""},
	} {
		s, err := take(t.Context(), c.dir, c.file)
		if c.want == "" {
			if !errors.Is(err, ErrInput) {
				t.Errorf("%s in %s: %v", c.file, c.dir, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s in %s: %v", c.file, c.dir, err)
			continue
		}
		if s.dockerfile != c.want {
			t.Errorf("%s in %s is %s", c.file, c.dir, s.dockerfile)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(s.file.Name()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the archive is left: %v", err)
		}
	}
}

func TestMalformedDockerignore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"Dockerfile": "FROM scratch\n", ".dockerignore": "[a-\n"})
	if _, err := take(t.Context(), dir, ""); !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), ignoreFile) {
		t.Error(err)
	}
}

// A file that cannot be read fails the build: an image without it would be wrong.
func TestUnreadableFileFails(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	writeFiles(t, root.Name(), map[string]string{"file": "text", "other": "text"})
	info, err := root.Lstat("file")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() error{
		"replaced": func() error { return root.Rename("other", "file") },
		"gone":     func() error { return root.Remove("file") },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		p := &packer{ctx: t.Context(), root: root, archive: tar.NewWriter(io.Discard), sum: sha256.New()}
		if err := p.add("file", info); err == nil {
			t.Errorf("a file that was %s was added", path.Base(name))
		}
	}
}
