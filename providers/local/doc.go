// Package local runs sandboxes on this machine with an OCI runtime (runc by
// default), driven through its command line.
//
// Everything the provider knows is on disk: the state directory holds one
// directory per sandbox, the runtime holds its processes. Nothing of the server
// process is needed for a sandbox to go on, so a restarted server finds what
// runs, and several servers may share one state directory. Every change of a
// sandbox happens under a lock file of its name, and its record says how far a
// creation or deletion has come, so that whoever comes next can finish it.
//
// Nothing is ever mounted in the host's mount namespace. Disks and overlays are
// mounted in a namespace that lives only as long as the runtime's call and the
// container that it starts, and loop devices detach themselves, so a killed
// server leaves neither behind.
package local
