package spawn

// sharesMemory says that children share the agent's memory until they execute
// the command, as with vfork: nothing is copied, so the size of the agent does
// not matter.
const sharesMemory = true

// clone makes a system call that clones: clone(2) or clone3(2), by its number
// and its first three arguments. The child calls the function at entry on the
// stack that the arguments name, which must be its own when memory is shared,
// and never returns.
//
//go:noescape
func clone(number, a1, a2, a3, entry uintptr, c *child) (pid, errno uintptr)
