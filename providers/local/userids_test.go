//go:build linux

package local

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"testing"

	"github.com/sandgate/sandgate/providers"
)

func TestUserIDs(t *testing.T) {
	state, other := t.TempDir(), t.TempDir()
	u := &userIDs{dir: t.TempDir(), state: state, base: 100}
	twin := &userIDs{dir: u.dir, state: other, base: 100}
	held := func() int {
		entries, err := os.ReadDir(u.dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	a, err1 := u.claim("a")
	b, err2 := twin.claim("a")
	if err := errors.Join(err1, err2); err != nil || a == b || a < 100 || a >= 100+uidCount {
		t.Fatalf("ids %d and %d, %v", a, b, err)
	}
	// Another's id, and none, are not released.
	if err := errors.Join(u.release(b, "a"), u.release(a, "b"), u.release(0, "a")); err != nil || held() != 2 {
		t.Errorf("%d are left, %v", held(), err)
	}
	if err := u.sweep(func() (map[string]bool, error) { return map[string]bool{"a": true}, nil }); err != nil || held() != 2 {
		t.Errorf("a sweep left %d, %v", held(), err)
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
	u := &userIDs{dir: t.TempDir(), state: "/s", base: 100}
	for i := range uint32(uidCount) {
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

func TestUserIDOverlaps(t *testing.T) {
	u := &userIDs{base: defaultUIDBase}
	got := u.overlaps("a:100000:65536\nb:2000544:65536\nbroken\nc:2097152:65536\nd:1:4000000\n")
	if want := []string{"b:2000544:65536", "d:1:4000000"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
