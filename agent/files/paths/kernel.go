package paths

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// tries bounds how often a lookup that raced with a rename is repeated.
const tries = 64

// hasOpenat2 reports whether the kernel resolves beneath a directory.
// Seccomp filters refuse it with EPERM, older kernels and some runtimes with
// ENOSYS.
var hasOpenat2 = sync.OnceValue(func() bool {
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_DIRECTORY,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	// An absolute path is never beneath the working directory.
	if err == nil {
		_ = unix.Close(fd)
		return false
	}
	return errors.Is(err, unix.EXDEV)
})

// errUseWalk is returned if the kernel's result is not final.
var errUseWalk = errors.New("resolve in user space")

func openat2(dir int, path string, flags int, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags), Resolve: resolve}
	for range tries {
		fd, err := unix.Openat2(dir, path, &how)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EXDEV):
			// The kernel rejects an absolute link even if it stays inside.
			return -1, errUseWalk
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			return -1, errUseWalk
		default:
			return fd, err
		}
	}
	return -1, errUseWalk
}

// openat is unix.Openat, repeated if a signal interrupts it.
func openat(dir int, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, path, flags, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
