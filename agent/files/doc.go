// Package files is the file half of the agent: the calls of AgentService that
// read, write and search files, with the sandbox's own user and permissions.
//
// Every call resolves its paths through a view of package paths, made from the
// confinement that the server sent, and works on descriptors from then on.
//
// A file is replaced atomically: the new content is written to an unnamed file beside it
// (a hidden one if the file system has no unnamed files), which is then renamed. Readers
// see the old content or the new one. A call that fails or is cancelled leaves the old
// content, and an unnamed file disappears with a killed agent. The new file has another
// inode: hard links to the old one keep the old content, and access control lists are
// lost. Nothing is synced: a written file survives the agent, but not a power failure.
//
// No call holds a file in memory. Results are sorted and bounded, and a truncated result
// is marked.
package files
