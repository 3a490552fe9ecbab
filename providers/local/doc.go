// Package local runs sandboxes on this machine with an OCI runtime (runc by
// default), driven through its command line.
//
// All state is on disk: the state directory has one directory per sandbox, and
// the runtime has its processes. A sandbox doesn't depend on the server's
// process, so a restarted server finds running sandboxes, and several servers
// may share one state directory. Every change of a sandbox happens under a lock
// file of its name. Its record holds the phase of a creation or deletion, so
// that the next server can finish it.
//
// Nothing is ever mounted in the host's mount namespace. Disks and overlays are
// mounted in a namespace that lives only as long as the runtime's call and the
// container that it starts, and loop devices detach themselves, so a killed
// server leaves neither behind.
package local
