//go:build linux

package userid

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
)

func TestUserIDs(t *testing.T) {
	state, other := t.TempDir(), t.TempDir()
	u := &Allocator{dir: t.TempDir(), state: state, base: 100, count: 50}
	twin := &Allocator{dir: u.dir, state: other, base: 100, count: 50}
	held := func() int {
		entries, err := os.ReadDir(u.dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	a, err1 := u.Allocate("a")
	b, err2 := twin.Allocate("a")
	if err := errors.Join(err1, err2); err != nil || a == b || a < 100 || a >= 150 {
		t.Fatalf("ids %d and %d, %v", a, b, err)
	}
	// Another's id, and none, are not released.
	if err := errors.Join(u.Release(b, "a"), u.Release(a, "b"), u.Release(0, "a")); err != nil || held() != 2 {
		t.Errorf("%d are left, %v", held(), err)
	}
	if err := u.Sweep(func() (map[string]bool, error) { return map[string]bool{"a": true}, nil }); err != nil || held() != 2 {
		t.Errorf("a sweep left %d, %v", held(), err)
	}
	// A record that does not name its id gives it back all the same.
	c, err := u.Allocate("c")
	if err := errors.Join(err, u.ReleaseOf("none"), u.ReleaseOf("c")); err != nil || held() != 2 || !gone(u.path(c)) {
		t.Errorf("%d are left, %v", held(), err)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if err := u.Sweep(func() (map[string]bool, error) { return map[string]bool{"a": true}, nil }); err != nil || held() != 1 {
		t.Errorf("a sweep without the other state directory left %d, %v", held(), err)
	}
	if err := u.Sweep(func() (map[string]bool, error) { return nil, fs.ErrPermission }); !errors.Is(err, fs.ErrPermission) || held() != 1 {
		t.Errorf("a sweep that can't read the records left %d, %v", held(), err)
	}
	if err := u.Sweep(func() (map[string]bool, error) { return nil, nil }); err != nil || held() != 0 {
		t.Errorf("a sweep without the sandbox left %d, %v", held(), err)
	}
}

func TestUserIDsRunOut(t *testing.T) {
	u := &Allocator{dir: t.TempDir(), state: "/s", base: 100, count: 50}
	for i := range u.count {
		if i == 7 {
			continue
		}
		if err := os.Symlink("/s/x", u.path(100+i)); err != nil {
			t.Fatal(err)
		}
	}
	if id, err := u.Allocate("last"); err != nil || id != 107 {
		t.Errorf("the last free id is %d, %v", id, err)
	}
	if id, err := u.Allocate("more"); !errors.Is(err, providers.ErrExhausted) {
		t.Errorf("beyond the last there is %d, %v", id, err)
	}
}

func TestRanges(t *testing.T) {
	u := &Allocator{dir: t.TempDir(), state: t.TempDir(), base: 100, count: 50, ranges: 3}
	seen := map[uint32]bool{}
	for _, name := range []string{"a", "b", "c"} {
		first, err := u.AllocateRange(name)
		if err != nil || seen[first] || first < RangeBase || first >= RangeBase+3*RangeSize || first%RangeSize != 0 {
			t.Errorf("%s: %d, %v", name, first, err)
		}
		seen[first] = true
	}
	if id, err := u.AllocateRange("d"); !errors.Is(err, providers.ErrExhausted) {
		t.Errorf("beyond the last there is %d, %v", id, err)
	}
	for first := range seen {
		if err := errors.Join(u.Release(first, "a"), u.Release(first, "b"), u.Release(first, "c")); err != nil {
			t.Error(err)
		}
	}
	if _, err := u.AllocateRange("d"); err != nil {
		t.Errorf("after their release: %v", err)
	}
	if err := u.ReleaseOf("d"); err != nil {
		t.Error(err)
	}
	if id, err := u.Allocate("e"); err != nil || id >= 150 {
		t.Errorf("a single id is %d, %v", id, err)
	}
}

// TestNamespaceHasItsOwner: a range's first id owns its user namespace, and no thread of
// this process keeps that id.
func TestNamespaceHasItsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root and runc: not root")
	}
	file, err := OpenNamespace(RangeBase, MapRange(RangeBase))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	owner, err := unix.IoctlGetUint32(int(file.Fd()), unix.NS_GET_OWNER_UID)
	if err != nil || owner != RangeBase {
		t.Errorf("the owner is %d, %v", owner, err)
	}
	statuses, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(statuses) == 0 {
		t.Fatal(statuses, err)
	}
	for _, path := range statuses {
		data, err := os.ReadFile(path)
		if err == nil && !strings.Contains(string(data), "\nUid:\t0\t0\t0\t0\n") {
			t.Errorf("%s:\n%s", path, data)
		}
	}
}

// TestMappings: each id below Unmapped, and the owner, has a host id of its own, whatever
// the owner is.
func TestMappings(t *testing.T) {
	user := Owner{UID: DefaultBase + 7, GID: DefaultBase + 7}
	for _, c := range []struct {
		from         Owner
		root, others uint32
		mapping      Mapping
	}{
		{user, NamespaceRootBase + 7, SystemBase, MapSystem(user, user)},
		{Owner{1234, 33}, NamespaceRootBase + 7, SystemBase, MapSystem(Owner{1234, 33}, user)},
		{Owner{1, Unmapped - 1}, 0, 0, MapOwner(Owner{1, Unmapped - 1}, user)},
		{Owner{Unmapped, 70000}, 0, 0, MapOwner(Owner{Unmapped, 70000}, user)},
	} {
		for from, ids := range map[uint32][]syscall.SysProcIDMap{c.from.UID: c.mapping.UIDs, c.from.GID: c.mapping.GIDs} {
			got := map[uint32]uint32{}
			for _, m := range ids {
				for i := range m.Size {
					if _, twice := got[uint32(m.ContainerID+i)]; twice {
						t.Fatalf("%+v: %d is there twice", ids, m.ContainerID+i)
					}
					got[uint32(m.ContainerID+i)] = uint32(m.HostID + i)
				}
			}
			want := map[uint32]uint32{0: c.root}
			for i := uint32(1); i < Unmapped; i++ {
				want[i] = c.others + i
			}
			want[from] = user.UID
			if !maps.Equal(got, want) {
				t.Errorf("%+v maps %+v", c, ids)
			}
		}
	}
}

func TestUserIDOverlaps(t *testing.T) {
	u := &Allocator{base: DefaultBase, count: Count}
	got := u.Overlaps("a:100000:65536\nb:2000544:65536\nbroken\nc:2097152:65536\nd:1:4000000\ne:1879048191:2\nf:2147352576:65536\ng:2147483647:1\n")
	if want := []string{"b:2000544:65536", "d:1:4000000", "e:1879048191:2", "g:2147483647:1"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestImageUser(t *testing.T) {
	passwd := "root:x:0:0:::\nnode:x:1001:1002:::\nbroken\nbig:x:99999999999:1:::\n"
	groups := "root:x:0:\nweb:x:88:node\nstaff:x:1002:\n"
	for user, want := range map[string]User{
		"": {Name: "sandbox", Group: "sandbox"}, "root": {Name: "sandbox", Group: "sandbox"}, "0:5": {Name: "sandbox", Group: "sandbox"},
		"nobody-knows": {Name: "sandbox", Group: "sandbox"}, "big": {Name: "sandbox", Group: "sandbox"}, "-1": {Name: "sandbox", Group: "sandbox"},
		"node":     {UID: 1001, GID: 1002, Name: "node", Group: "staff"},
		"1001":     {UID: 1001, GID: 1002, Name: "node", Group: "staff"},
		"node:7":   {UID: 1001, GID: 7, Name: "node", Group: "node"},
		"node:web": {UID: 1001, GID: 88, Name: "node", Group: "web"},
		"1234":     {UID: 1234, GID: 1234, Name: "sandbox", Group: "sandbox"},
		"1234:0":   {UID: 1234, GID: 1234, Name: "sandbox", Group: "sandbox"},
		"1234:88":  {UID: 1234, GID: 88, Name: "sandbox", Group: "web"},
	} {
		want.Passwd, want.Groups = passwd, groups
		if got := FindUser(user, passwd, groups); got != want {
			t.Errorf("%q: %+v, want %+v", user, got, want)
		}
	}
	if got := FindUser("app", "", ""); got != HostUser {
		t.Errorf("without account files: %+v", got)
	}
}

func TestAccountFiles(t *testing.T) {
	a := Account{Name: "node", Group: "web", UID: 70000, GID: 70001, Home: "/home/sandbox"}
	passwd := a.PasswdFile("root:x:0:0::/root:/bin/sh\nnode:x:1001:1002:Node:/home/node:/bin/bash\nlast:x:5:5::/:/bin/false")
	if want := "root:x:0:0::/root:/bin/sh\nlast:x:5:5::/:/bin/false\nnode:x:70000:70001:node:/home/sandbox:/bin/bash\n"; passwd != want {
		t.Errorf("passwd: %q", passwd)
	}
	if groups := a.GroupFile("root:x:0:\nweb:x:88:node\n"); groups != "root:x:0:\nweb:x:70001:\n" {
		t.Errorf("group: %q", groups)
	}
}
