package sshserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/sandgate/sandgate/test/daemon"
)

// transfer opens an SFTP session.
func (b *bed) transfer(client *ssh.Client) (*sftp.Client, *daemon.Log) {
	b.t.Helper()
	s, err := client.NewSession()
	if err != nil {
		b.t.Fatal(err)
	}
	errs, err := s.StderrPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	stderr := new(daemon.Log)
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		_, _ = io.Copy(stderr, errs)
	}()
	in, err := s.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := s.RequestSubsystem("sftp"); err != nil {
		b.t.Fatal(err)
	}
	c, err := sftp.NewClientPipe(out, in)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close(); _ = s.Close(); <-printed })
	return c, stderr
}

func (b *bed) path(name string) string { return filepath.Join(b.home, name) }

func (b *bed) put(name, content string) {
	b.t.Helper()
	if err := os.WriteFile(b.path(name), []byte(content), 0o640); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) get(name string) string {
	b.t.Helper()
	raw, err := os.ReadFile(b.path(name))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(raw)
}

func TestNames(t *testing.T) {
	b := open(t, nil, nil)
	c, _ := b.transfer(b.login())
	if dir, err := c.Getwd(); err != nil || dir != b.home {
		t.Errorf("relative paths begin at %q, %v", dir, err)
	}
	// More than one reply holds.
	if err := c.Mkdir("many"); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 250 {
		want = append(want, fmt.Sprintf("%03d", i))
		b.put("many/"+want[i], "x")
	}
	list, err := c.ReadDir("many")
	var names []string
	for _, entry := range list {
		names = append(names, entry.Name())
	}
	slices.Sort(names)
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("%v, %v", names, err)
	}

	b.put("file", "content")
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	must("chmod", c.Chmod("file", 0o4751))
	at := time.Unix(1234567890, 0)
	must("chtimes", c.Chtimes("file", at, at))
	info, err := c.Stat("file")
	if err != nil || info.Mode() != 0o751|fs.ModeSetuid || !info.ModTime().Equal(at) || info.Size() != 7 {
		t.Errorf("%+v, %v", info, err)
	}
	must("symlink", c.Symlink("file", "link"))
	must("symlink to a directory", c.Symlink("many", "dirlink"))
	must("dangling symlink", c.Symlink("none", "dangling"))
	if to, err := c.ReadLink("link"); err != nil || to != "file" {
		t.Errorf("%q, %v", to, err)
	}
	if info, err := c.Lstat("link"); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("%+v, %v", info, err)
	}
	if info, err := c.Stat("link"); err != nil || !info.Mode().IsRegular() || info.Size() != 7 {
		t.Errorf("%+v, %v", info, err)
	}
	if info, err := c.Stat("dirlink"); err != nil || !info.IsDir() {
		t.Errorf("%+v, %v", info, err)
	}
	must("hard link", c.Link("file", "hard"))
	must("rename", c.Rename("hard", "soft"))
	must("rename over a file", c.PosixRename("soft", "file"))
	must("remove", c.Remove("dangling"))
	must("rmdir", c.Mkdir("empty"))
	must("rmdir", c.RemoveDirectory("empty"))
	if got := b.get("file"); got != "content" {
		t.Errorf("%q", got)
	}

	for what, err := range map[string]error{
		"stat of nothing":             one2(c.Stat("none")),
		"stat of a dangling link":     func() error { must("symlink", c.Symlink("none", "dangling")); return one2(c.Stat("dangling")) }(),
		"removal of nothing":          c.Remove("none"),
		"list of nothing":             one2(c.ReadDir("none")),
		"read of nothing":             one2(c.Open("none")),
		"mode of nothing":             c.Chmod("none", 0o600),
		"write without creation":      one2(c.OpenFile("none", os.O_WRONLY)),
		"write into a missing parent": writeFile(c, "none/file", "x"),
	} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
	b.put("other", "x")
	for what, err := range map[string]error{
		"rename over a file":          c.Rename("file", "other"),
		"mkdir over a file":           c.Mkdir("file"),
		"rmdir of a file":             c.RemoveDirectory("file"),
		"rmdir of a full directory":   c.RemoveDirectory("many"),
		"symlink over a file":         c.Symlink("x", "file"),
		"list of a file":              one2(c.ReadDir("file")),
		"read of a directory":         one2(io.ReadAll(try(c.Open("many")))),
		"write over a directory":      writeFile(c, "many", "x"),
		"exclusive write over a file": one2(c.OpenFile("file", os.O_WRONLY|os.O_CREATE|os.O_EXCL)),
		"reading what is written":     one2(io.ReadAll(try(c.OpenFile("file", os.O_RDWR)))),
		"readlink of a file":          one2(c.ReadLink("file")),
		"truncation":                  c.Truncate("file", 3),
		"owner":                       c.Chown("file", 1, 1),
	} {
		if err == nil {
			t.Errorf("%s succeeded", what)
		}
	}
	if got := b.get("other"); got != "x" {
		t.Errorf("%q", got)
	}
}

func one2[T any](_ T, err error) error { return err }

// try returns a reader that fails if opening did.
func try(f *sftp.File, err error) io.Reader {
	if err != nil {
		return errorReader{err}
	}
	return f
}

type errorReader struct{ err error }

func (e errorReader) Read([]byte) (int, error) { return 0, e.err }

func writeFile(c *sftp.Client, name, content string) error {
	f, err := c.Create(name)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, content)
	return errors.Join(err, f.Close())
}

// A file has its old content until the client closes the new one.
func TestWritesAreAtomic(t *testing.T) {
	b := open(t, nil, nil)
	client := b.login()
	c, _ := b.transfer(client)
	b.put("file", "old")
	f, err := c.Create("file")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("new")); err != nil {
		t.Fatal(err)
	}
	if info, err := c.Stat("file"); err != nil || info.Size() != 3 {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := c.Create("file"); err == nil {
		t.Error("two writers of one file")
	}
	if err := f.Chmod(0o600); err != nil {
		t.Fatal(err)
	}
	if got := b.get("file"); got != "old" {
		t.Errorf("before the end: %q", got)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(b.path("file"))
	if got := b.get("file"); got != "new" || err != nil || info.Mode() != 0o600 {
		t.Errorf("%q, %v, %v", got, info.Mode(), err)
	}

	// A new file that is there for the client is not there for others.
	if f, err = c.Create("fresh"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("part")); err != nil {
		t.Fatal(err)
	}
	if info, err := c.Stat("fresh"); err != nil || info.Size() != 4 {
		t.Errorf("%+v, %v", info, err)
	}
	_ = client.Close()
	eventually(t, "the session ends", func() bool { return strings.Contains(b.log.String(), "connection closed") })
	if _, err := os.Stat(b.path("fresh")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a part was written: %v", err)
	}
}

// Writes that are not from the first byte to the last.
func TestPartialWrites(t *testing.T) {
	b := open(t, nil, nil)
	c, stderr := b.transfer(b.login())
	const old = "0123456789"
	type write struct {
		at   int64
		text string
	}
	for name, tt := range map[string]struct {
		flags    int
		writes   []write
		truncate int64 // -1: no
		want     string
		fails    bool
	}{
		"from the start, kept tail": {os.O_WRONLY, []write{{0, "abc"}}, -1, "abc3456789", false},
		"from the start, cut":       {os.O_WRONLY, []write{{0, "abc"}}, 3, "abc", false},
		"resumed":                   {os.O_WRONLY, []write{{10, "abc"}}, -1, "0123456789abc", false},
		"in the middle":             {os.O_WRONLY, []write{{4, "abc"}}, -1, "0123abc789", false},
		"two pieces":                {os.O_WRONLY, []write{{1, "a"}, {8, "bcde"}}, -1, "0a234567bcde", false},
		"out of order":              {os.O_WRONLY | os.O_TRUNC, []write{{3, "b"}, {4, "c"}, {0, "aaa"}}, -1, "aaabc", false},
		"nothing":                   {os.O_WRONLY, nil, -1, old, false},
		"nothing, truncated":        {os.O_WRONLY | os.O_TRUNC, nil, -1, "", false},
		"a hole":                    {os.O_WRONLY | os.O_TRUNC, []write{{1, "a"}}, -1, old, true},
		"a hole beyond the end":     {os.O_WRONLY, []write{{11, "a"}}, -1, old, true},
		"backwards":                 {os.O_WRONLY, []write{{0, "abc"}, {1, "x"}}, -1, old, true},
		"the same twice":            {os.O_WRONLY, []write{{5, "a"}, {5, "b"}}, -1, old, true},
		"overlapping":               {os.O_WRONLY, []write{{5, "a"}, {2, "bcdef"}}, -1, old, true},
		"cut elsewhere":             {os.O_WRONLY, []write{{0, "abc"}}, 5, old, true},
	} {
		b.put("file", old)
		f, err := c.OpenFile("file", tt.flags)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range tt.writes {
			if err == nil {
				_, err = f.WriteAt([]byte(w.text), w.at)
			}
		}
		if err == nil && tt.truncate >= 0 {
			err = f.Truncate(tt.truncate)
			if err != nil { // The client gives up without closing.
				b.put("file", old)
				_ = f.Close()
				b.put("file", old)
				if !tt.fails {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
		}
		err = errors.Join(err, f.Close())
		if (err != nil) != tt.fails || b.get("file") != tt.want {
			t.Errorf("%s: %v, %q", name, err, b.get("file"))
		}
	}
	eventually(t, "the user reads why", func() bool { return strings.Contains(stderr.String(), "sandgate: a file with a hole") })
}

// Any large file goes there and back, by concurrent requests that arrive in any order,
// and any part of it can be read.
func TestContent(t *testing.T) {
	b := open(t, nil, nil)
	client := b.login()
	c, _ := b.transfer(client)
	content := make([]byte, 5<<20+12345)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content)
	f, err := c.Create("file")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadFromWithConcurrency(bytes.NewReader(content), 64); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if b.get("file") != string(content) {
		t.Fatal("the content was changed on its way there")
	}
	if f, err = c.Open("file"); err != nil {
		t.Fatal(err)
	}
	var back bytes.Buffer
	if _, err := f.WriteTo(&back); err != nil || !bytes.Equal(back.Bytes(), content) {
		t.Fatalf("%d bytes came back, %v", back.Len(), err)
	}
	_ = f.Close()
	random := rand.New(rand.NewPCG(1, 2))
	for range 15 {
		f, err := c.Open("file")
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + random.IntN(6) {
			at := random.IntN(len(content) + 1000)
			p := make([]byte, 1+random.IntN(100_000))
			n, err := f.ReadAt(p, int64(at))
			want := content[min(at, len(content)):min(at+len(p), len(content))]
			if !bytes.Equal(p[:n], want) || n < len(p) && !errors.Is(err, io.EOF) || n == len(p) && err != nil {
				t.Fatalf("at %d: %d of %d bytes, %v", at, n, len(want), err)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A file that is replaced while it is read is never mixed.
func TestReadOfReplacedFile(t *testing.T) {
	b := open(t, nil, nil)
	c, _ := b.transfer(b.login())
	const size = 16 << 20
	b.put("file", strings.Repeat("a", size))
	f, err := c.Open("file")
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 1000)
	if _, err := f.ReadAt(p, 0); err != nil || p[0] != 'a' {
		t.Fatal(p[0], err)
	}
	b.put("next", strings.Repeat("b", size+1))
	if err := os.Rename(b.path("next"), b.path("file")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(p, size-5000); err == nil && p[0] != 'a' {
		t.Error("the file was mixed from two")
	}
	if _, err := f.ReadAt(p, 1000); err != nil || p[0] != 'a' {
		t.Errorf("what was opened ends: %c, %v", p[0], err)
	}
}

func TestOpenFiles(t *testing.T) {
	b := open(t, nil, nil)
	client := b.login()
	c, stderr := b.transfer(client)
	b.put("file", "x")
	var files []*sftp.File
	for range maxFiles {
		f, err := c.Open("file")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	second, _ := b.transfer(client)
	if _, err := second.Open("file"); err == nil {
		t.Error("one more file was opened")
	}
	if _, err := c.ReadDir("."); err == nil {
		t.Error("one more directory was opened")
	}
	eventually(t, "the user reads why", func() bool { return strings.Contains(stderr.String(), "too many open files") })
	for _, f := range files {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	for range 2 * maxFiles {
		if _, err := c.ReadDir("."); err != nil {
			t.Fatal(err)
		}
		if err := writeFile(c, "file", "y"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.OpenFile("none", os.O_WRONLY); err == nil {
			t.Fatal("there is no such file")
		}
	}
}
