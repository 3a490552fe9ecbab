//go:build !amd64

package spawn

import "syscall"

// sharesMemory: on these architectures children get a copy of the agent's
// memory, which is slower by the time that takes.
const sharesMemory = false

// clone makes a system call that clones: clone(2) or clone3(2), by its number
// and its first three arguments. It returns twice: in the child, which has a
// copy of everything, its stack included, with a pid of 0.
//
//go:norace
//go:nosplit
func clone(number, a1, a2, a3, _ uintptr, _ *child) (pid, errno uintptr) {
	pid, _, err := syscall.RawSyscall6(number, a1, a2, a3, 0, 0, 0)
	return pid, uintptr(err)
}
