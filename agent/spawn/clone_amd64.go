package spawn

// sharesMemory means that children share the agent's memory until execve, as with
// vfork. Nothing is copied, so the size of the agent does not matter.
const sharesMemory = true

// clone makes the system call clone(2) or clone3(2), given by its number and first
// four arguments. The child calls the function at entry on the stack given in the
// arguments, which must be its own if memory is shared, and never returns.
//
//go:noescape
func clone(number, a1, a2, a3, a4, entry uintptr, c *child) (pid, errno uintptr)
