package userid

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// OpenNamespace makes a user namespace and opens it. An id of the sandbox owns it: what
// the kernel limits by user, it also counts against a namespace's owner, and root is
// the owner of those that runtimes make.
func OpenNamespace(owner uint32, m Mapping) (file *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		restore, err1 := becomeOwner(owner)
		if err = err1; err == nil {
			file, err = openUserNamespace(m)
		}
		if restore() == nil {
			// Otherwise the thread ends with the goroutine.
			runtime.UnlockOSThread()
		}
	}()
	<-done
	return file, err
}

// MountNamespace mounts a namespace at a file, for a runtime to join.
func MountNamespace(namespace *os.File, at string) error {
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(int(namespace.Fd())), at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount a user namespace: %w", err)
	}
	return nil
}

// becomeOwner changes the user of this thread alone, which keeps its capabilities and
// its access to files.
func becomeOwner(uid uint32) (restore func() error, err error) {
	bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	if err != nil {
		return func() error { return nil }, err
	}
	was := unix.Getuid()
	restore = func() error {
		if err := setUser(was); err != nil {
			return err
		}
		return unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits), 0, 0, 0)
	}
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits)|secNoSetuidFixup, 0, 0, 0); err != nil {
		return restore, err
	}
	if err := setUser(int(uid)); err != nil {
		return restore, err
	}
	return restore, unix.Setfsuid(was)
}

// secNoSetuidFixup is SECBIT_NO_SETUID_FIXUP of linux/securebits.h.
const secNoSetuidFixup = 1 << 2

// setUser is setresuid for one thread. That of the package syscall is for all.
func setUser(uid int) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
	if errno != 0 {
		return errno
	}
	return nil
}
