// Package history keeps ended commands: their exit status, and their retained
// output within bounds. There are thousands of them, so an ended command is one
// compact record, and its output moves from memory to an archive on disk.
package history

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandgate/sandgate/agent/tree"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// Command is an ended command, decoded.
type Command struct {
	ID                 string
	Text               string // the beginning of the command line, for people
	Hash               [32]byte
	Detached, Terminal bool
	Pid                int
	Start, End         time.Time
	Retention          time.Duration
	Stdin              int64 // bytes that its standard input took
	TraceParent        string
	Exited             *sandboxv1.Exited
	Log                *streaming.Log
	Tree               tree.Tree
}

// Ended is an ended command, encoded.
type Ended struct {
	next      *Ended
	encoded   string // exec_id, text, traceparent, and Exited in wire format
	idLen     uint8
	traceLen  uint8
	textLen   uint16
	detached  bool
	terminal  bool
	pid       int32
	hash      [32]byte
	start     int64         // Unix nanoseconds
	ended     time.Duration // since epoch
	retention time.Duration
	stdin     int64
	position  int64     // after the last byte of output
	output    *retained // nil if no output is retained
	tree      tree.Tree // nil if no process is alive
}

// epoch is when this agent began. Ends are durations since then, of the monotonic clock,
// so that a wall clock that is set forward ends no retention.
var epoch = time.Now()

// retained is the retained output of an ended command: in memory, in the archive,
// or in the log's own spill file.
type retained struct {
	packed  streaming.Packed // without Runs if they are in the archive
	log     *streaming.Log   // nil unless the output is too large for the archive
	at      int64            // offset in the archive
	size    int              // bytes in the archive, 0 if none
	counted int              // bytes counted in History.held
}

// Encode returns the record of a command whose output is complete. The record
// takes over the log if the output is too large to pack.
func Encode(c Command) *Ended {
	wire, err := proto.Marshal(c.Exited)
	if err != nil {
		// Only text that is not UTF-8 fails, and the agent writes none.
		wire = nil
	}
	e := &Ended{
		encoded: c.ID + c.Text + c.TraceParent + string(wire),
		idLen:   uint8(len(c.ID)), traceLen: uint8(len(c.TraceParent)), textLen: uint16(len(c.Text)),
		detached: c.Detached, terminal: c.Terminal, pid: int32(c.Pid), hash: c.Hash,
		start: c.Start.UnixNano(), ended: c.End.Sub(epoch), retention: c.Retention, stdin: c.Stdin,
	}
	if len(c.Tree.Pids()) > 0 {
		e.tree = c.Tree
	}
	first, end := c.Log.Range()
	e.position = end
	if first == end {
		return e
	}
	if packed, ok := c.Log.Pack(maxPacked); ok {
		e.output = &retained{packed: packed}
		return e
	}
	c.Log.Park()
	e.output = &retained{log: c.Log}
	return e
}

// OwnsLog reports whether the record still uses the command's own log.
func (e *Ended) OwnsLog() bool { return e.output != nil && e.output.log != nil }

func (e *Ended) id() string { return e.encoded[:e.idLen] }

func (e *Ended) text() string { return e.encoded[e.idLen : int(e.idLen)+int(e.textLen)] }

func (e *Ended) traceParent() string {
	at := int(e.idLen) + int(e.textLen)
	return e.encoded[at : at+int(e.traceLen)]
}

func (e *Ended) exited() *sandboxv1.Exited {
	var x sandboxv1.Exited
	if err := proto.Unmarshal([]byte(e.encoded[int(e.idLen)+int(e.textLen)+int(e.traceLen):]), &x); err != nil {
		return &sandboxv1.Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_LOST, Position: e.position}
	}
	return &x
}

// cost returns about how much memory the record takes, including its map entry
// and excluding its output.
func (e *Ended) cost() int { return endedSize + len(e.encoded) }

const endedSize = 192

// load decodes the record for one caller.
func (e *Ended) load(archive *streaming.Archive) Command {
	c := Command{
		ID: e.id(), Text: e.text(), Hash: e.hash, Detached: e.detached, Terminal: e.terminal, Pid: int(e.pid),
		Start: time.Unix(0, e.start), End: epoch.Add(e.ended), Retention: e.retention, Stdin: e.stdin,
		Exited: e.exited(), Tree: e.tree, TraceParent: e.traceParent(),
	}
	if c.Tree == nil {
		c.Tree = tree.Empty{}
	}
	c.Log = e.open(archive, c.Exited.GetPosition())
	return c
}

// open returns the log with the retained output; the rest is a gap.
func (e *Ended) open(archive *streaming.Archive, exit int64) *streaming.Log {
	dropped := streaming.Packed{Base: e.position, End: e.position, Exit: exit}
	switch o := e.output; {
	case o == nil:
		return dropped.Open()
	case o.log != nil:
		return o.log
	case o.size > 0:
		runs, ok := archive.Get(o.at, o.size)
		if !ok {
			return dropped.Open()
		}
		packed := o.packed
		packed.Runs = runs
		return packed.Open()
	default:
		return o.packed.Open()
	}
}

// first returns the oldest position that can still be read.
func (e *Ended) first(archive *streaming.Archive) int64 {
	switch o := e.output; {
	case o == nil, o.size > 0 && !archive.Holds(o.at):
		return e.position
	case o.log != nil:
		first, _ := o.log.Range()
		return first
	default:
		return o.packed.Base
	}
}

func (e *Ended) describe(archive *streaming.Archive) *sandboxv1.Process {
	p := &sandboxv1.Process{
		ExecId: e.id(), Command: strings.ToValidUTF8(e.text(), "\uFFFD"), StartTime: timestamppb.New(time.Unix(0, e.start)),
		Detached: e.detached, Terminal: e.terminal, Exited: e.exited(),
		FirstPosition: e.first(archive), Position: e.position,
	}
	if e.tree != nil {
		p.LiveProcesses = int32(len(e.tree.Pids()))
	}
	return p
}
