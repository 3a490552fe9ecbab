// Package agent is what runs inside a sandbox: it starts commands, keeps their
// output, and ends them with everything they left behind. File calls are
// package files.
//
// Each command is one goroutine, the pump, which owns its pipes: it reads them
// into the command's log and notices the end of the leader. Callers follow the
// log, each from a position of its own. The end of the leader settles the log;
// the end of the pipes seals it.
package agent
