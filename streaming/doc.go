// Package streaming implements the order of bytes in streams.
//
// [Log] is the ordered output log of a command. One writer fills it, and any number of
// readers follow it, each from its own position. A later reader gets exactly what the
// first one got. A position is the number of bytes of both streams together that come
// before.
//
// [Sequence] checks the events that an agent sends for one command, [Frames] the
// messages that a client sends for an upload. Both are state machines over plain values:
// they know no gRPC and never read a payload.
//
// The package imports nothing but the standard library.
package streaming
