package files_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func TestRemove(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	write(t, dir+"/f", "x")
	write(t, dir+"/full/a/b/c", "x")
	write(t, dir+"/outside/keep", "x")
	deep := dir + "/deep"
	for range 12 {
		deep += "/" + strings.Repeat("d", 100)
	}
	write(t, deep+"/f", "x")
	if err := os.Mkdir(dir+"/empty", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{"/link", "/full/a/link"} {
		if err := os.Symlink(dir+"/outside", dir+link); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(path string, recursive, missing bool, policies ...*sandboxv1.AccessPolicy) string {
		resp, err := c.RemoveFile(called(t.Context(), nil, policies...), &sandboxv1.RemoveFileRequest{Path: path, Recursive: recursive, AllowMissing: missing})
		if err == nil {
			return fmt.Sprint(resp.GetRemoved())
		}
		return reason(t, err)
	}
	deny := &sandboxv1.AccessPolicy{WriteDenyPrefixes: []string{dir + "/full/a/b"}}
	if got := remove(dir+"/full", true, false, deny); got != "POLICY_DENIED" || read(t, dir+"/full/a/b/c") != "x" {
		t.Errorf("under a policy: %s", got)
	}
	for i, tt := range []struct {
		path               string
		recursive, missing bool
		want               string
	}{
		{"/f", false, false, "true"},
		{"/f", false, false, "FILE_NOT_FOUND"},
		{"/f", false, true, "false"},
		{"/none/f", true, true, "false"},
		{"/full", false, false, "DIRECTORY_NOT_EMPTY"},
		{"/full", true, false, "true"},
		{"/empty/", false, false, "true"},
		{"/link", true, false, "true"},
		{"/deep", true, false, "true"},
		{"/..", true, false, "PATH_INVALID"},
	} {
		if got := remove(dir+tt.path, tt.recursive, tt.missing); got != tt.want {
			t.Errorf("%d %s: %s, want %s", i, tt.path, got, tt.want)
		}
	}
	if diff := cmp.Diff([]string{"outside"}, names(t, dir)); diff != "" || read(t, dir+"/outside/keep") != "x" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	for _, path := range []string{"/", "//", "/."} {
		if got := remove(path, true, true); got != "PATH_INVALID" {
			t.Errorf("%q: %s", path, got)
		}
	}
	if got := remove("/", true, false, &sandboxv1.AccessPolicy{RootDir: dir, Virtual: true}); got != "PATH_INVALID" {
		t.Errorf("the virtual root: %s", got)
	}
	if got := remove(dir, true, false, &sandboxv1.AccessPolicy{RootDir: dir}); got != "PATH_INVALID" {
		t.Errorf("the root directory: %s", got)
	}
}

// TestRemoveTreeDeeperThanAnyPath removes a tree that is deeper than any path can be long.
func TestRemoveTreeDeeperThanAnyPath(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 1500 {
		name := strings.Repeat("d", 60)
		if err := unix.Mkdirat(fd, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, name, unix.O_PATH, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
		fd = next
	}
	_ = unix.Close(fd)
	_, err = c.RemoveFile(t.Context(), &sandboxv1.RemoveFileRequest{
		Path: filepath.Join(dir, strings.Repeat("d", 60)), Recursive: true,
	})
	if err != nil || len(names(t, dir)) != 0 {
		t.Errorf("%v, left: %q", err, names(t, dir))
	}
}

// TestRemoveNeverFollowsASwappedLink lets an attacker swap a directory for a link while the tree is
// removed: nothing outside may go.
func TestRemoveNeverFollowsASwappedLink(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	write(t, dir+"/outside/keep", "x")
	ctx, cancel := context.WithCancel(t.Context())
	var attack sync.WaitGroup
	attack.Go(func() {
		for ctx.Err() == nil {
			_ = os.MkdirAll(dir+"/tree/a/b", 0o755)
			_ = os.Symlink(dir+"/outside", dir+"/tree/l")
			_ = unix.Renameat2(unix.AT_FDCWD, dir+"/tree/a", unix.AT_FDCWD, dir+"/tree/l", unix.RENAME_EXCHANGE)
		}
	})
	for range 300 {
		_, err := c.RemoveFile(t.Context(), &sandboxv1.RemoveFileRequest{
			Path: dir + "/tree", Recursive: true, AllowMissing: true,
		})
		if r := reason(t, err); r != "" && r != "DIRECTORY_NOT_EMPTY" {
			t.Errorf("%v", err)
		}
	}
	cancel()
	attack.Wait()
	if read(t, dir+"/outside/keep") != "x" {
		t.Error("a file outside is gone")
	}
}
