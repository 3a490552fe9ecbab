// Package files is the file half of the agent: the calls of AgentService that
// read, write and search files, with the sandbox's own user and permissions.
//
// Every call resolves its paths through a view of package paths, made from the
// confinement that the server sent, and works on descriptors from then on.
// Files are replaced by writing a nameless file beside them (a hidden one where
// the file system has none) and renaming it, so a reader sees the old content or
// the new, and a call that fails or is cancelled leaves the old; what a killed
// agent had open goes with it. That gives the file another inode: hard links to the old one
// keep the old content, and access control lists are not carried over. Nothing
// is synced to the disk: a file that was reported as written survives the agent
// but not a power cut.
//
// No call holds a file in memory. Results are sorted and bounded, and say so
// when they were cut.
package files
