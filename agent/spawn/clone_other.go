//go:build !amd64

package spawn

import "syscall"

// sharesMemory is false on these architectures: children get a copy of the agent's
// memory, which takes longer.
const sharesMemory = false

// clone makes the system call clone(2) or clone3(2), given by its number and first
// four arguments. It returns a second time in the child, with pid 0, on a copy of
// the stack.
//
//go:norace
//go:nosplit
func clone(number, a1, a2, a3, a4, _ uintptr, _ *child) (pid, errno uintptr) {
	pid, _, err := syscall.RawSyscall6(number, a1, a2, a3, a4, 0, 0)
	return pid, uintptr(err)
}
