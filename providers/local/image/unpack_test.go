//go:build linux

package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

type tarEntry struct {
	name, link, data string
	kind             byte
	mode             int64
}

func makeTar(tb testing.TB, entries ...tarEntry) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		if e.mode == 0 {
			e.mode = 0o644
		}
		h := &tar.Header{
			Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: e.mode, Size: int64(len(e.data)),
			Uid: os.Getuid(), Gid: os.Getgid(),
		}
		if err := w.WriteHeader(h); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(w, e.data); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// tree reads a directory: files' contents, links' targets, "/" for directories.
func tree(tb testing.TB, root string) map[string]string {
	tb.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		switch {
		case d.IsDir():
			out[rel] = "/"
		case d.Type()&fs.ModeSymlink != 0:
			out[rel], err = os.Readlink(path)
			out[rel] = "->" + out[rel]
		default:
			var data []byte
			data, err = os.ReadFile(path)
			out[rel] = string(data)
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func TestUnpackLayers(t *testing.T) {
	for _, c := range []struct {
		name   string
		layers [][]tarEntry
		want   map[string]string
	}{
		{
			name: "a later layer replaces and hides",
			layers: [][]tarEntry{
				{{name: "a/one", data: "1"}, {name: "a/two", data: "2"}, {name: "b/three", data: "3"}},
				{{name: "a/.wh.one"}, {name: "a/two", data: "second"}, {name: ".wh.b"}},
			},
			want: map[string]string{"a": "/", "a/two": "second"},
		},
		{
			name: "an opaque directory keeps what its own layer adds, before and after",
			layers: [][]tarEntry{
				{{name: "d/old", data: "1"}, {name: "d/sub/old", data: "1"}},
				{{name: "d/sub/new", data: "2"}, {name: "d/.wh..wh..opq"}, {name: "d/late", data: "3"}},
			},
			want: map[string]string{"d": "/", "d/sub": "/", "d/sub/new": "2", "d/late": "3"},
		},
		{
			name:   "a file takes the place of a directory",
			layers: [][]tarEntry{{{name: "x/y", data: "1"}}, {{name: "x", data: "2"}}},
			want:   map[string]string{"x": "2"},
		},
		{
			name: "names go through the image's own links",
			layers: [][]tarEntry{
				{{name: "run/", kind: tar.TypeDir, mode: 0o755}, {name: "var/run", kind: tar.TypeSymlink, link: "/run"}, {name: "lib", kind: tar.TypeSymlink, link: "usr/lib"}},
				{{name: "var/run/file", data: "1"}, {name: "lib/so", data: "2"}},
			},
			want: map[string]string{"run": "/", "run/file": "1", "var": "/", "var/run": "->/run", "lib": "->usr/lib", "usr": "/", "usr/lib": "/", "usr/lib/so": "2"},
		},
		{
			name: "hard links",
			layers: [][]tarEntry{
				{{name: "bin/busybox", data: "b"}, {name: "bin/sh", kind: tar.TypeLink, link: "bin/busybox"}, {name: "ls", kind: tar.TypeLink, link: "/bin/busybox"}},
			},
			want: map[string]string{"bin": "/", "bin/busybox": "b", "bin/sh": "b", "ls": "b"},
		},
		{
			name: "neither names nor links lead out",
			layers: [][]tarEntry{
				{{name: "../../outside", data: "1"}, {name: "/abs", data: "2"}, {name: "up", kind: tar.TypeSymlink, link: "../../../.."}, {name: "up/etc/x", data: "3"}},
			},
			want: map[string]string{"outside": "1", "abs": "2", "up": "->../../../..", "etc": "/", "etc/x": "3"},
		},
		{
			name:   "devices and pipes are left out",
			layers: [][]tarEntry{{{name: "null", kind: tar.TypeChar}, {name: "fifo", kind: tar.TypeFifo}, {name: "f", data: "1"}}},
			want:   map[string]string{"f": "1"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "a", "b", "root")
			if err := os.MkdirAll(root, 0o755); err != nil {
				t.Fatal(err)
			}
			u := newUnpacker(root)
			var failed error
			for _, layer := range c.layers {
				failed = errors.Join(failed, u.apply(t.Context(), bytes.NewReader(makeTar(t, layer...))))
			}
			if failed != nil {
				t.Fatal(failed)
			}
			if diff := cmp.Diff(c.want, tree(t, root)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestUnpackKeepsTimesOwnersAndAttributes: times, attributes, owners and modes are those of the
// layer, except what the kernel interprets.
func TestUnpackKeepsTimesOwnersAndAttributes(t *testing.T) {
	root := t.TempDir()
	then := time.Date(2020, 2, 3, 4, 5, 6, 7000, time.UTC)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	pax := map[string]string{"SCHILY.xattr.user.color": "blue", "SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}
	for _, h := range []tar.Header{
		{Name: "plain", Typeflag: tar.TypeReg, Mode: 0o755, Uid: 7, Gid: 8},
		{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o2750, Uid: 7, Gid: 8},
		{Name: "dir/su", Typeflag: tar.TypeReg, Mode: 0o4711, Uid: 7, Gid: 8, PAXRecords: pax},
		{Name: "dir/plain", Typeflag: tar.TypeLink, Linkname: "/plain"},
		{Name: "dir/link", Typeflag: tar.TypeSymlink, Linkname: "/nowhere", Uid: 7, Gid: 8},
	} {
		if h.Format = tar.FormatPAX; h.Typeflag != tar.TypeLink {
			h.ModTime, h.AccessTime = then, then
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := newUnpacker(root).apply(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{"plain": 0o755, "dir": fs.ModeDir | 0o750, "dir/su": 0o711, "dir/link": fs.ModeSymlink | 0o777} {
		info, err := os.Lstat(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		owner := info.Sys().(*syscall.Stat_t)
		if info.Mode() != mode || !info.ModTime().Equal(then) || os.Geteuid() == 0 && (owner.Uid != 7 || owner.Gid != 8) {
			t.Errorf("%s: %v of %d:%d at %v", name, info.Mode(), owner.Uid, owner.Gid, info.ModTime())
		}
	}
	value := make([]byte, 100)
	if n, err := unix.Lgetxattr(filepath.Join(root, "dir/su"), "user.color", value); err != nil || string(value[:n]) != "blue" {
		t.Errorf("user.color is %q, %v", value[:max(n, 0)], err)
	}
	if n, err := unix.Lgetxattr(filepath.Join(root, "dir/su"), "security.capability", value); err == nil {
		t.Errorf("it has a capability: %q", value[:n])
	}
}

func TestUnpackBounds(t *testing.T) {
	three := makeTar(t, tarEntry{name: "a", data: "12345"}, tarEntry{name: "b", data: "12345"}, tarEntry{name: "c"})
	for _, c := range []struct {
		name string
		u    unpacker
		want error
	}{
		{"just", unpacker{files: 10, stream: int64(len(three)), entries: 3}, nil},
		{"bytes", unpacker{files: 9, stream: int64(len(three)), entries: 3}, errTooLarge},
		{"stream", unpacker{files: 10, stream: 1000, entries: 3}, errTooLarge},
		{"entries", unpacker{files: 10, stream: int64(len(three)), entries: 2}, errTooManyEntries},
	} {
		c.u.root = t.TempDir()
		if err := c.u.apply(t.Context(), &boundedReader{ctx: t.Context(), in: bytes.NewReader(three), left: &c.u.stream}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	errGivenUp := errors.New("given up")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errGivenUp)
	u := newUnpacker(t.TempDir())
	if err := u.apply(ctx, bytes.NewReader(three)); !errors.Is(err, errGivenUp) {
		t.Errorf("a canceled caller: %v", err)
	}
}

// FuzzUnpack: whatever a layer holds, nothing outside the root changes.
func FuzzUnpack(f *testing.F) {
	f.Add(makeTar(f, tarEntry{name: "a", kind: tar.TypeSymlink, link: "/"}, tarEntry{name: "a/../canary", data: "x"}))
	f.Add(makeTar(f, tarEntry{name: "l", kind: tar.TypeSymlink, link: ".."}, tarEntry{name: "l/.wh.canary"}, tarEntry{name: "h", kind: tar.TypeLink, link: "l/canary"}))
	f.Add(makeTar(f, tarEntry{name: "d/", kind: tar.TypeDir}, tarEntry{name: "../.wh..wh..opq"}, tarEntry{name: ".wh..."}))
	f.Fuzz(func(t *testing.T, data []byte) {
		outer := t.TempDir()
		root := filepath.Join(outer, "root")
		if err := os.Mkdir(root, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(outer, "canary"), []byte("alive"), 0o644); err != nil {
			t.Fatal(err)
		}
		u := newUnpacker(root)
		u.files, u.stream, u.entries = 1<<20, 1<<20, 1000
		if in, err := decompress(bufio.NewReader(bytes.NewReader(data))); err == nil {
			_ = u.apply(t.Context(), &boundedReader{ctx: t.Context(), in: in, left: &u.stream})
			_ = in.Close()
		}
		entries, err := os.ReadDir(outer)
		if err != nil || len(entries) != 2 {
			t.Fatalf("outside there is now %v, %v", entries, err)
		}
		canary, err := os.ReadFile(filepath.Join(outer, "canary"))
		if err != nil || string(canary) != "alive" {
			t.Fatalf("the file outside is now %q, %v", canary, err)
		}
	})
}
