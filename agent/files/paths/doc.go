// Package paths resolves the paths of file calls within the limits of their policies.
//
// A [View] is made from the policies of one call. With a root directory, every path
// resolves beneath it: in the kernel by openat2, or else component by component in user
// space, with the same results. Prefixes are checked against the resolved path of the
// opened descriptor, never against the text of the request. So neither "..", nor a link,
// nor a race bypasses them.
//
// A denying prefix applies both as written and as resolved. An allowing prefix applies
// only as written and must be a resolved path: otherwise a command could widen it by a
// link.
//
// Policies are ordered from the widest (server) to the narrowest (call). The prefixes of a
// policy with a virtual root, and of later ones, are paths as the caller sees them, below
// that root. Those of earlier policies are the sandbox's own paths.
//
// Policies by path do not cover a second hard link to a file.
package paths
