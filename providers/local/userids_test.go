//go:build linux

package local

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
)

func TestUserIDs(t *testing.T) {
	state, other := t.TempDir(), t.TempDir()
	u := &userIDs{dir: t.TempDir(), state: state, base: 100, count: 50}
	twin := &userIDs{dir: u.dir, state: other, base: 100, count: 50}
	held := func() int {
		entries, err := os.ReadDir(u.dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	a, err1 := u.claim("a")
	b, err2 := twin.claim("a")
	if err := errors.Join(err1, err2); err != nil || a == b || a < 100 || a >= 150 {
		t.Fatalf("ids %d and %d, %v", a, b, err)
	}
	// Another's id, and none, are not released.
	if err := errors.Join(u.release(b, "a"), u.release(a, "b"), u.release(0, "a")); err != nil || held() != 2 {
		t.Errorf("%d are left, %v", held(), err)
	}
	if err := u.sweep(func() (map[string]bool, error) { return map[string]bool{"a": true}, nil }); err != nil || held() != 2 {
		t.Errorf("a sweep left %d, %v", held(), err)
	}
	// A record that does not name its id gives it back all the same.
	c, err := u.claim("c")
	if err := errors.Join(err, u.releaseOf("none"), u.releaseOf("c")); err != nil || held() != 2 || exists(u.path(c)) {
		t.Errorf("%d are left, %v", held(), err)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if err := u.sweep(func() (map[string]bool, error) { return map[string]bool{"a": true}, nil }); err != nil || held() != 1 {
		t.Errorf("a sweep without the other state directory left %d, %v", held(), err)
	}
	if err := u.sweep(func() (map[string]bool, error) { return nil, fs.ErrPermission }); !errors.Is(err, fs.ErrPermission) || held() != 1 {
		t.Errorf("a sweep that can't read the records left %d, %v", held(), err)
	}
	if err := u.sweep(func() (map[string]bool, error) { return nil, nil }); err != nil || held() != 0 {
		t.Errorf("a sweep without the sandbox left %d, %v", held(), err)
	}
}

func TestUserIDsRunOut(t *testing.T) {
	u := &userIDs{dir: t.TempDir(), state: "/s", base: 100, count: 50}
	for i := range u.count {
		if i == 7 {
			continue
		}
		if err := os.Symlink("/s/x", u.path(100+i)); err != nil {
			t.Fatal(err)
		}
	}
	if id, err := u.claim("last"); err != nil || id != 107 {
		t.Errorf("the last free id is %d, %v", id, err)
	}
	if id, err := u.claim("more"); !errors.Is(err, providers.ErrExhausted) {
		t.Errorf("beyond the last there is %d, %v", id, err)
	}
}

// TestHalfWrittenTrees: what a killed server left goes, and not what another may
// be writing.
func TestHalfWrittenTrees(t *testing.T) {
	l := layout(t.TempDir())
	if err := l.make(); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-2 * partAge)
	for name, at := range map[string]time.Time{".part-old": long, ".part-new": time.Now(), "whole": long} {
		dir := l.path("rootfs", name)
		if err := errors.Join(os.MkdirAll(dir+"/etc", 0o755), os.Chtimes(dir, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := writeTree(l, map[string]entry{"/etc/x": {mode: 0o644, data: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(l.roots())
	if err != nil || len(left) != 3 || left[0].Name() != ".part-new" || !exists(l.path("rootfs", "whole")) || !exists(root) {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestUserIDOverlaps(t *testing.T) {
	u := &userIDs{base: defaultUIDBase, count: uidCount}
	got := u.overlaps("a:100000:65536\nb:2000544:65536\nbroken\nc:2097152:65536\nd:1:4000000\n")
	if want := []string{"b:2000544:65536", "d:1:4000000"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
