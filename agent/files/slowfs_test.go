package files

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// silentFS mounts a file system whose program never answers. After release, system
// calls on it fail.
func silentFS(t *testing.T) (dir string, release func()) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("file systems of programs are not available:", err)
	}
	dir = t.TempDir()
	if err := unix.Mount("silent", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		_ = unix.Close(fd)
		t.Skip("mounting needs root:", err)
	}
	open := true
	release = func() {
		if open {
			_ = unix.Close(fd)
		}
		open = false
	}
	t.Cleanup(func() {
		release()
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, release
}

// Calls that the kernel does not end delay no others.
func TestCallsOnASilentFileSystem(t *testing.T) {
	s, path := editable(t)
	dir, release := silentFS(t)
	held := make(chan error, maxWork)
	for range maxWork {
		go func() {
			_, err := s.StatFile(unconfined(context.Background()), &sandboxv1.StatFileRequest{Path: filepath.Join(dir, "file")})
			held <- err
		}()
	}
	for s.work.Held() < maxWork {
		runtime.Gosched()
	}
	for range 20 {
		if _, err := s.StatFile(unconfined(t.Context()), &sandboxv1.StatFileRequest{Path: path}); err != nil {
			t.Error(err)
		}
	}
	if len(held) > 0 {
		t.Errorf("a call on a silent file system ended with %v", <-held)
	}
	release()
	for range maxWork {
		if err := <-held; err == nil {
			t.Error("a call on a file system without a program succeeded")
		}
	}
	if n := s.work.Held(); n > 0 {
		t.Errorf("%d slots are still held", n)
	}
}
