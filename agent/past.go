package agent

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/spawn"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// past is a command of which nothing is left to wait for: its end, and what is
// kept of its output. There are thousands of them, so it holds nothing else.
type past struct {
	next      *past
	words     string // exec_id, text, and exited as it goes on the wire
	idLen     uint8
	textLen   uint16
	detached  bool
	terminal  bool
	pid       int32
	hash      [32]byte
	start     int64 // Unix nanoseconds
	ending    int64
	retention time.Duration
	taken     int64    // bytes of standard input
	end       int64    // position after the last byte of output
	out       *remains // nil when nothing is kept of it
	tree      tree     // nil when nothing of it is alive
}

// remains are what is kept of an ended command's output: in memory, in the
// archive, or in the log's own spill file.
type remains struct {
	packed  streaming.Packed // without Runs when they are in the archive
	log     *streaming.Log   // nil unless it is too large for the archive
	at      int64            // place in the archive
	size    int              // bytes in the archive, 0 when there are none
	holding int              // bytes counted in history.held
}

// pastOf is called when the command's pump has ended.
func pastOf(c *command) *past {
	c.mu.Lock()
	exited, ending := c.exited, c.ending
	c.mu.Unlock()
	wire, err := proto.Marshal(exited)
	if err != nil {
		// Only text that is not UTF-8 fails, and the agent writes none.
		wire = nil
	}
	p := &past{
		words: c.id + c.text + string(wire), idLen: uint8(len(c.id)), textLen: uint16(len(c.text)),
		detached: c.detached, terminal: c.terminal, pid: int32(c.proc.Pid), hash: c.hash,
		start: c.start.UnixNano(), ending: ending.UnixNano(), retention: c.retention, taken: c.stdin.taken(),
	}
	if len(c.tree.pids()) > 0 {
		p.tree = c.tree
	}
	base, end := c.log.Range()
	p.end = end
	if base == end {
		return p
	}
	if packed, ok := c.log.Pack(keepPacked); ok {
		p.out = &remains{packed: packed}
		return p
	}
	c.log.Park()
	p.out = &remains{log: c.log}
	return p
}

func (p *past) id() string { return p.words[:p.idLen] }

func (p *past) text() string { return p.words[p.idLen : int(p.idLen)+int(p.textLen)] }

func (p *past) exited() *sandboxv1.Exited {
	var x sandboxv1.Exited
	if err := proto.Unmarshal([]byte(p.words[int(p.idLen)+int(p.textLen):]), &x); err != nil {
		return &sandboxv1.Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_LOST, Position: p.end}
	}
	return &x
}

// cost is about what it takes in memory, its place in the map included and its
// output not.
func (p *past) cost() int { return pastSize + len(p.words) }

const pastSize = 192

// over is a channel for what is over.
var over = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// revive makes a command of it for one caller.
func (p *past) revive(a *Agent) *command {
	c := &command{
		agent: a, id: p.id(), hash: p.hash, text: p.text(), detached: p.detached, terminal: p.terminal,
		retention: p.retention, proc: &spawn.Process{Pid: int(p.pid), PidFD: -1, Reports: -1},
		tree: p.tree, start: time.Unix(0, p.start), ready: over, settled: over,
		stdin: newStdin(p.terminal, p.taken), fated: true, ending: time.Unix(0, p.ending), exited: p.exited(),
	}
	if c.tree == nil {
		c.tree = noTree{}
	}
	c.log = p.open(a.ended.archive, c.exited.GetPosition())
	return c
}

// open returns the log as far as it is kept; the rest is a gap.
func (p *past) open(archive *streaming.Archive, settled int64) *streaming.Log {
	gone := streaming.Packed{Base: p.end, End: p.end, Settled: settled}
	switch o := p.out; {
	case o == nil:
		return gone.Open()
	case o.log != nil:
		return o.log
	case o.size > 0:
		runs, ok := archive.Get(o.at, o.size)
		if !ok {
			return gone.Open()
		}
		packed := o.packed
		packed.Runs = runs
		return packed.Open()
	default:
		return o.packed.Open()
	}
}

// first is the oldest position that can still be read.
func (p *past) first(archive *streaming.Archive) int64 {
	switch o := p.out; {
	case o == nil, o.size > 0 && !archive.Holds(o.at):
		return p.end
	case o.log != nil:
		first, _ := o.log.Range()
		return first
	default:
		return o.packed.Base
	}
}

func (p *past) describe(archive *streaming.Archive) *sandboxv1.Process {
	d := &sandboxv1.Process{
		ExecId: p.id(), Command: strings.ToValidUTF8(p.text(), "\uFFFD"), StartTime: timestamppb.New(time.Unix(0, p.start)),
		Detached: p.detached, Terminal: p.terminal, Exited: p.exited(),
		FirstPosition: p.first(archive), Position: p.end,
	}
	if p.tree != nil {
		d.LiveProcesses = int32(len(p.tree.pids()))
	}
	return d
}

// noTree is a tree of which nothing is alive.
type noTree struct{}

var _ tree = noTree{}

func (noTree) kill() bool             { return true }
func (noTree) signal(unix.Signal) int { return 0 }
func (noTree) pids() []int            { return nil }
func (noTree) usage(*usage)           {}
func (noTree) release()               {}
