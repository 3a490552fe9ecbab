// Package streaming holds what Sandgate knows about bytes and their order.
//
// [Log] is the one ordered output log of a command: a writer appends what the
// command printed, any number of readers follow it, each from a position of
// its own, and a later reader sees exactly what the first one saw. A position
// is the number of bytes, of both streams together, that come before; it is
// the only cursor there is.
//
// [Sequence] checks what an agent sends for one command, [Frames] what a
// client sends for an upload. Both are pure state machines over simple values:
// they know nothing of gRPC and never touch the payload.
//
// The package imports nothing but the standard library.
package streaming
