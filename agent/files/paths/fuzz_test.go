package paths_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/paths"
)

// FuzzOpen builds a tree from bytes and compares the kernel, the walk and a
// model of them, for a real root and a virtual one.
func FuzzOpen(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, "a/b")
	f.Add([]byte{2, 0, 12, 2, 1, 7, 0, 2, 0}, "a/../b/c")
	f.Add([]byte{2, 0, 1, 2, 1, 2, 2, 2, 3, 0, 3, 0}, "a/b/c/d")
	f.Add([]byte{0, 0, 0, 2, 4, 9, 2, 5, 10, 2, 8, 5}, "c/a/x")
	f.Fuzz(func(t *testing.T, ops []byte, path string) {
		if len(ops) > 60 || len(path) > 60 || strings.ContainsAny(path, "\x00") {
			return
		}
		base, err := filepath.EvalSymlinks(t.TempDir())
		must(t, err)
		m := &model{root: base + "/r", nodes: map[string]string{}}
		must(t, os.MkdirAll(m.root, 0o755))
		must(t, os.WriteFile(base+"/out", []byte("secret"), 0o644))
		m.nodes[m.root] = "/"
		m.build(t, ops)
		for _, part := range strings.Split(path, "/") {
			if len(part) > 2 {
				return // only short names exist
			}
		}
		for _, virtual := range []bool{false, true} {
			at := "/" + path
			if !virtual {
				at = m.root + at
			}
			want := m.open(path, virtual)
			for mode, opts := range modes() {
				v, err := paths.New([]paths.Policy{{Root: m.root, Virtual: virtual}}, opts)
				must(t, err)
				if got := content(v, at, paths.Read); got != want {
					t.Errorf("%s, virtual %v: %q gives %q, want %q in %v", mode, virtual, at, got, want, m.nodes)
				}
				must(t, v.Close())
			}
		}
	})
}

// model is a file system of directories ("/"), files (their content) and links
// ("->" and the target), by their real paths.
type model struct {
	root  string
	nodes map[string]string
}

// build reads three bytes for each node: kind, place and target.
func (m *model) build(t *testing.T, ops []byte) {
	places := []string{"a", "b", "c", "a/a", "a/b", "a/c", "b/a", "b/b", "a/b/c", "c/a"}
	targets := []string{
		"a", "b", "c", "..", "../a", "../..", "../../out", ".", "a/b", "/a", "/", "/a/b", "b/", "c/.",
		m.root, m.root + "/a", m.root + "/b/a", filepath.Dir(m.root) + "/out", "../b/../a", "/../a", m.root + "x", "../c/",
	}
	for ; len(ops) >= 3; ops = ops[3:] {
		place := m.root + "/" + places[int(ops[1])%len(places)]
		if _, taken := m.nodes[place]; taken || m.nodes[filepath.Dir(place)] != "/" {
			continue
		}
		switch ops[0] % 3 {
		case 0:
			m.nodes[place] = "/"
			must(t, os.Mkdir(place, 0o755))
		case 1:
			m.nodes[place] = "content of " + place
			must(t, os.WriteFile(place, []byte(m.nodes[place]), 0o644))
		default:
			target := targets[int(ops[2])%len(targets)]
			m.nodes[place] = "->" + target
			must(t, os.Symlink(target, place))
		}
	}
}

// open returns what a reader must get: absolute links start at a virtual root, or must
// name the real one; ".." stops at a virtual root and must not pass the real one.
func (m *model) open(path string, virtual bool) string {
	var todo []string
	for _, c := range strings.Split(path, "/") {
		switch c {
		case "", ".":
		case "..":
			return "invalid"
		default:
			todo = append(todo, c)
		}
	}
	cur, links := m.root, 0
	for len(todo) > 0 {
		c := todo[0]
		todo = todo[1:]
		if m.nodes[cur] != "/" {
			return unix.ErrnoName(unix.ENOTDIR)
		}
		switch c {
		case "", ".":
			continue
		case "..":
			if cur != m.root {
				cur = filepath.Dir(cur)
			} else if !virtual {
				return "outside"
			}
			continue
		}
		node, ok := m.nodes[cur+"/"+c]
		switch {
		case !ok:
			return unix.ErrnoName(unix.ENOENT)
		case !strings.HasPrefix(node, "->"):
			cur += "/" + c
			continue
		}
		if links++; links > 40 {
			return unix.ErrnoName(unix.ELOOP)
		}
		target := node[2:]
		if strings.HasPrefix(target, "/") {
			cur = m.root
			if !virtual {
				rest, ok := strings.CutPrefix(target, m.root)
				if !ok || rest != "" && rest[0] != '/' {
					return "outside"
				}
				target = rest
			}
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	if m.nodes[cur] == "/" {
		return "directory"
	}
	return m.nodes[cur]
}
