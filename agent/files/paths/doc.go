// Package paths resolves the paths of file calls within what a call may touch.
//
// A [View] is made from the policies of one call. With a root directory every
// path resolves beneath it: in the kernel by openat2 where there is one, and
// component by component without following links elsewhere. The two give the
// same results. What prefixes allow or deny is decided on the resolved path of
// the descriptor that was opened, never on the text of the request, so neither
// "..", nor a link, nor a race leads around them.
//
// A prefix that denies counts as it is written and as it resolves. A prefix
// that allows counts as it is written only: it must name a real path, because a
// command in the sandbox could otherwise widen it by a link.
//
// Policies come from the widest (server) to the narrowest (call). The prefixes
// of a policy whose root is virtual, and of those after it, are written as the
// caller sees paths, that is below that root. Those before it are the sandbox's
// own paths.
//
// What a policy by path cannot see: a second hard link to a file.
package paths
