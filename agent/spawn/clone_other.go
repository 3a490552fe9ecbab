//go:build !amd64

package spawn

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sharesMemory: on these architectures children get a copy of the agent's
// memory, which is slower by the time that takes.
const sharesMemory = false

// clone is clone(2). It returns twice: in the child, which has a copy of
// everything, with a pid of 0.
//
//go:norace
//go:nosplit
func clone(flags, _ uintptr, pidfd *int32, _ uintptr, _ *child) (pid, errno uintptr) {
	pid, _, err := syscall.RawSyscall6(syscall.SYS_CLONE, flags, 0, uintptr(unsafe.Pointer(pidfd)), 0, 0, 0)
	return pid, uintptr(err)
}

// clone3 is clone3(2), and returns like clone.
//
//go:norace
//go:nosplit
func clone3(args *cloneArgs, _ uintptr, _ *child) (pid, errno uintptr) {
	pid, _, err := syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args), 0)
	return pid, uintptr(err)
}
