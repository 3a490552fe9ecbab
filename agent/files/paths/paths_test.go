package paths_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/paths"
)

// modes are both ways to resolve. A kernel without openat2 has one.
func modes() map[string]paths.Options {
	return map[string]paths.Options{"walk": {NoKernel: true}, "kernel": {}}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func view(t testing.TB, opts paths.Options, policies ...paths.Policy) *paths.View {
	t.Helper()
	v, err := paths.New(policies, opts)
	must(t, err)
	t.Cleanup(func() { _ = v.Close() })
	return v
}

// content opens a path and returns what it holds, or what went wrong.
func content(v *paths.View, path string, access paths.Access) string {
	f, err := v.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, access)
	if err != nil {
		return class(err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(f)
	if errors.Is(err, unix.EISDIR) {
		return "directory"
	}
	return string(b)
}

func class(err error) string {
	var denied *paths.DeniedError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &denied):
		return "denied"
	case errors.Is(err, paths.ErrOutside):
		return "outside"
	case errors.Is(err, paths.ErrInvalid):
		return "invalid"
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// tree makes a root with links of every kind, and a secret outside of it.
func tree(t testing.TB) (root, outside string) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	root, outside = base+"/root", base+"/outside"
	must(t, os.MkdirAll(root+"/a/b", 0o755))
	must(t, os.MkdirAll(outside, 0o755))
	for path, text := range map[string]string{
		root + "/f": "f", root + "/a/f": "a/f", root + "/a/b/f": "a/b/f", outside + "/f": "secret",
	} {
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	for name, target := range map[string]string{
		"rel": "a/f", "dir": "a", "up": "a/../a/b/../../f", "chain": "chain1", "chain1": "dir/f",
		"abs": root + "/a/f", "absdir": root + "/a", "virt": "/a/f", "virtdir": "/a/b",
		"out": outside + "/f", "outdir": outside, "relout": "../outside/f", "reloutdir": "../outside",
		"upup": "../../../../../../../../../..", "dangling": "nothing", "danglingout": outside + "/new",
		"loop": "loop", "magic": "/proc/self/root", "slash": "a/", "dot": "a/.", "fileslash": "f/",
		"root": "/", "sibling": root + "-sibling/f",
	} {
		must(t, os.Symlink(target, root+"/"+name))
	}
	must(t, os.Mkdir(root+"-sibling", 0o755))
	must(t, os.WriteFile(root+"-sibling/f", []byte("sibling"), 0o644))
	return root, outside
}

func TestOpen(t *testing.T) {
	root, outside := tree(t)
	inside := map[string]string{ // below the root, for a real root and a virtual one
		"/f": "f f", "//a///f": "a/f a/f", "/./a/./f/": "a/f a/f", "/": "directory directory", "/a": "directory directory",
		"/rel": "a/f a/f", "/dir/f": "a/f a/f", "/up": "f f", "/chain": "a/f a/f", "/slash/f": "a/f a/f", "/dot/f": "a/f a/f",
		"/abs": "a/f ENOENT", "/absdir/b/f": "a/b/f ENOENT", "/virt": "outside a/f", "/virtdir/f": "outside a/b/f",
		"/out": "outside ENOENT", "/outdir/f": "outside ENOENT", "/relout": "outside ENOENT", "/reloutdir/f": "outside ENOENT",
		"/sibling": "outside ENOENT", "/upup": "outside directory", "/upup/f": "outside f", "/root/f": "outside f",
		"/dangling": "ENOENT ENOENT", "/danglingout": "outside ENOENT", "/loop": "ELOOP ELOOP",
		"/magic/f": "outside ENOENT", "/missing": "ENOENT ENOENT", "/f/x": "ENOTDIR ENOTDIR", "/fileslash": "ENOTDIR ENOTDIR",
		"/a/../f": "invalid invalid", "/../outside/f": "invalid invalid", "/..": "invalid invalid", "/a\x00": "invalid invalid",
	}
	for name, opts := range modes() {
		t.Run(name, func(t *testing.T) {
			real := view(t, opts, paths.Policy{Root: root})
			virtual := view(t, opts, paths.Policy{Root: root, Virtual: true})
			for path, want := range inside {
				got := content(real, root+path, paths.Read) + " " + content(virtual, path, paths.Read)
				if got != want {
					t.Errorf("%q: %q, want %q", path, got, want)
				}
			}
			for path, want := range map[string]string{
				"": "invalid", "f": "invalid", "./f": "invalid", outside + "/f": "outside", root + "-sibling/f": "outside",
				"/": "outside", filepath.Dir(root): "outside", root + "/../outside/f": "invalid",
			} {
				if got := content(real, path, paths.Read); got != want {
					t.Errorf("%q: %q, want %q", path, got, want)
				}
			}
			free := view(t, opts)
			for path, want := range map[string]string{
				root + "/../outside/f": "secret", root + "/outdir/../outside/f": "secret", root + "/out": "secret",
				root + "/magic" + root + "/f": "f", "": "invalid", "f": "invalid",
			} {
				if got := content(free, path, paths.Read); got != want {
					t.Errorf("without a root, %q: %q, want %q", path, got, want)
				}
			}
		})
	}
}

func TestPolicies(t *testing.T) {
	root, outside := tree(t)
	must(t, os.Symlink(root+"/a", outside+"/alias"))
	must(t, os.MkdirAll(root+"/ab", 0o755))
	must(t, os.WriteFile(root+"/ab/f", []byte("ab/f"), 0o644))
	tests := []struct {
		name     string
		policies []paths.Policy
		read     map[string]string
		write    map[string]string // "" is allowed
	}{
		{
			name:     "deny",
			policies: []paths.Policy{{ReadDeny: []string{root + "/a"}, WriteDeny: []string{outside + "/"}}},
			read: map[string]string{
				root + "/a/f": "denied", root + "/a/b/f": "denied", root + "/a": "denied", root + "/ab/f": "ab/f", root + "/f": "f",
				root + "/dir/f": "denied", root + "/ab/../a/f": "denied", root + "/abs": "denied", outside + "/alias/f": "denied",
				root + "/magic" + root + "/a/f": "ELOOP", outside + "/f": "secret",
			},
			write: map[string]string{root + "/a/new": "", outside + "/new": "denied", root + "/outdir/new": "denied", root + "/danglingout": "denied", outside: "denied"},
		},
		{
			name:     "deny by a link's name",
			policies: []paths.Policy{{ReadDeny: []string{root + "/dir", outside + "/alias/b/later"}}},
			read:     map[string]string{root + "/a/f": "denied", root + "/dir/f": "denied", root + "/f": "f"},
		},
		{
			name:     "allow",
			policies: []paths.Policy{{WriteAllow: []string{root + "/a", root + "/outdir"}, WriteDeny: []string{root + "/a/b"}}},
			read:     map[string]string{root + "/f": "f"},
			write: map[string]string{
				root + "/a/x": "", root + "/dir/x": "", root + "/a/b/x": "denied", root + "/x": "denied", root + "/ab/x": "denied",
				root + "/outdir/x": "denied", // a link must not widen what is allowed
			},
		},
		{
			name:     "all must allow",
			policies: []paths.Policy{{WriteAllow: []string{root}}, {WriteAllow: []string{root + "/a", outside}}, {Root: root}, {Root: root + "/a"}},
			read:     map[string]string{root + "/f": "outside", root + "/a/f": "a/f"},
			write:    map[string]string{root + "/a/x": "", root + "/x": "outside"},
		},
		{
			name:     "a wider root later",
			policies: []paths.Policy{{Root: root + "/a"}, {Root: "/"}},
			read:     map[string]string{root + "/f": "outside", root + "/a/f": "a/f", outside + "/f": "outside", root + "/dir/f": "a/f"},
		},
		{
			name: "virtual",
			policies: []paths.Policy{
				{ReadDeny: []string{root + "/a/b"}}, {Root: root, Virtual: true, WriteDeny: []string{"/a"}}, {ReadDeny: []string{"/f", "/virtdir"}},
			},
			read:  map[string]string{"/a/f": "a/f", "/a/b/f": "denied", "/f": "denied", "/up": "denied", "/root/root/f": "denied", "/ab/f": "ab/f"},
			write: map[string]string{"/a/x": "denied", "/x": "", "/dir/x": "denied"},
		},
	}
	for _, tt := range tests {
		for mode, opts := range modes() {
			t.Run(tt.name+"/"+mode, func(t *testing.T) {
				v := view(t, opts, tt.policies...)
				for path, want := range tt.read {
					if got := content(v, path, paths.Read); got != want {
						t.Errorf("read %q: %q, want %q", path, got, want)
					}
				}
				for path, want := range tt.write {
					loc, err := v.Locate(path, paths.Lookup{Access: paths.Write, Follow: true})
					if got := class(err); got != want {
						t.Errorf("write %q: %q, want %q", path, got, want)
					}
					if err == nil {
						must(t, loc.Close())
					}
				}
			})
		}
	}
}

func TestBadPolicies(t *testing.T) {
	for _, p := range []paths.Policy{
		{Root: "relative"}, {Virtual: true}, {ReadDeny: []string{""}}, {WriteDeny: []string{"x"}}, {WriteAllow: []string{"/a\x00"}},
	} {
		if _, err := paths.New([]paths.Policy{p}, paths.Options{}); !errors.Is(err, paths.ErrInvalid) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if _, err := paths.New([]paths.Policy{{Root: t.TempDir() + "/missing"}}, paths.Options{}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a missing root: %v", err)
	}
}

// TestRemovedFileDoesNotEscapeAPrefix checks that a file cannot escape a prefix by being removed
// between open and check: its path is then no path any more.
func TestRemovedFileDoesNotEscapeAPrefix(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/f (deleted)", []byte("a name"), 0o644))
	for _, opts := range modes() {
		v := view(t, opts, paths.Policy{ReadDeny: []string{"/nowhere"}})
		if got := content(v, dir+"/f (deleted)", paths.Read); got != "a name" {
			t.Errorf("a name that looks like a removed file: %q", got)
		}
		f, err := os.Create(dir + "/gone")
		must(t, err)
		must(t, os.Remove(dir+"/gone"))
		if real, err := v.Resolved(f); !errors.Is(err, unix.ENOENT) {
			t.Errorf("a removed file is at %q, %v", real, err)
		}
		must(t, f.Close())
	}
}

func TestLocate(t *testing.T) {
	for mode, opts := range modes() {
		t.Run(mode, func(t *testing.T) {
			root, outside := tree(t)
			v := view(t, opts, paths.Policy{Root: root})
			for path, want := range map[string]string{
				"": "invalid", "/": "invalid", "/new": "new", "/a/f": "f", "/rel": "rel", "/a/..": "invalid",
				"/outdir/new": "outside", "/missing/new": "ENOENT", "/f/new": "ENOTDIR", "/dir/new": "new",
			} {
				loc, err := v.Locate(root+path, paths.Lookup{Access: paths.Write})
				got := class(err)
				if err == nil {
					got = loc.Name
					must(t, loc.Close())
				}
				if got != want {
					t.Errorf("%q: %q, want %q", path, got, want)
				}
			}
			for path, want := range map[string]string{
				"/rel": root + "/a/f", "/dangling": root + "/nothing", "/p/q/r": root + "/p/q/r", "/dir/s/t": root + "/a/s/t",
				"/outdir/x/y": "outside", "/danglingout": "outside", "/reloutdir/x/y": "outside", "/dir": root + "/a", "/f/x/y": "ENOTDIR",
				"/loop/x": "ELOOP", "/upup": "outside", "/dangling/x": root + "/nothing/x",
			} {
				loc, err := v.Locate(root+path, paths.Lookup{Access: paths.Write, Follow: true, Parents: true})
				got := class(err)
				if err == nil {
					got = loc.Real
					must(t, loc.Close())
				}
				if got != want {
					t.Errorf("following, %q: %q, want %q", path, got, want)
				}
			}
			if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
				t.Errorf("outside holds %v, %v", entries, err)
			}
		})
	}
}
