//go:build !amd64

package spawn

import (
	"syscall"
	"unsafe"
)

// sharesMemory: on these architectures children get a copy of the agent's
// memory, which is slower by the time that takes.
const sharesMemory = false

// clone is clone(2). The child goes on with a copy of everything, calls the
// function at entry, and never returns.
//
//go:norace
//go:nosplit
func clone(flags, _ uintptr, pidfd *int32, entry uintptr, c *child) (pid, errno uintptr) {
	pid, _, err := syscall.RawSyscall6(syscall.SYS_CLONE, flags, 0, uintptr(unsafe.Pointer(pidfd)), 0, 0, 0)
	if err == 0 && pid == 0 {
		if entry == c.command {
			commandEntry(c)
		}
		childEntry(c)
	}
	return pid, uintptr(err)
}
