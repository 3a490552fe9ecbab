package lock

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockFD locks an open file, and reports whether another process holds the lock.
func lockFD(f *os.File) (held bool, err error) {
	const exclusive = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err = windows.LockFileEx(windows.Handle(f.Fd()), exclusive, 0, 1, 0, &windows.Overlapped{})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return true, nil
	}
	return false, err
}
