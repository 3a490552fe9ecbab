package spawn

// sharesMemory says that children share the agent's memory until they execute
// the command, as with vfork: nothing is copied, so the size of the agent does
// not matter.
const sharesMemory = true

// clone is clone(2). The child calls the function at entry on the given stack,
// which must be its own when memory is shared, and never returns.
//
//go:noescape
func clone(flags, stack uintptr, pidfd *int32, entry uintptr, c *child) (pid, errno uintptr)

// clone3 is clone3(2), with the stack in its arguments; the rest is as in
// clone.
//
//go:noescape
func clone3(args *cloneArgs, entry uintptr, c *child) (pid, errno uintptr)
