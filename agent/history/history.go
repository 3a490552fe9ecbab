package history

import (
	"hash/maphash"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// Bounds. Beyond a bound the oldest goes first: an exit status before its
// retention ends, or output, so that readers find a gap.
const (
	// maxEnded is how many ended commands are kept.
	maxEnded = 10_000
	// maxEndedBytes is the memory that they may take, without output.
	maxEndedBytes = 4 << 20
	// maxOutput is how much of their output stays in memory. Older output moves
	// to the archive.
	maxOutput = 1 << 20
	// maxInMemory is the largest output of one command that stays in memory.
	maxInMemory = 64 << 10
	// archiveSize is the size of the archive on disk.
	archiveSize = 32 << 20
	// maxPacked is the largest output of one command that is packed. A larger one
	// stays in a spill file of its own.
	maxPacked = 1 << 20
	// maxSpilled is how many ended commands may have a spill file.
	maxSpilled = 32
	// maxForgotten is how many ids are remembered of commands that were dropped
	// before their retention ended.
	maxForgotten = 1 << 14
)

// Retention is how long an ended command is kept by default.
const Retention = time.Hour

// History keeps ended commands, oldest first. It is not safe for concurrent use.
type History struct {
	byID        map[string]*Ended
	first, last *Ended
	bytes       int // of records
	held        int // of output in memory
	unparked    *Ended
	spilled     []*Ended // those with a log of their own
	archive     *streaming.Archive

	// Fingerprints of ids that were dropped early, so that no such id starts a
	// new command. A ring, allocated when first needed.
	seed      maphash.Seed
	forgotten map[uint64]struct{}
	ring      []uint64
	at        int
}

// New returns a history whose archive is in dir. If dir is empty, there is no
// archive and output beyond the bounds is dropped.
func New(dir string) *History {
	return &History{byID: map[string]*Ended{}, archive: streaming.NewArchive(dir, archiveSize), seed: maphash.MakeSeed()}
}

// Add adds a command that just ended.
func (h *History) Add(e *Ended) {
	h.byID[e.id()] = e
	if h.last == nil {
		h.first = e
	} else {
		h.last.next = e
	}
	h.last = e
	h.bytes += e.cost()
	if h.unparked == nil {
		h.unparked = e
	}
	switch o := e.output; {
	case o == nil:
	case o.log != nil:
		h.spilled = append(h.spilled, e)
		h.count(o, o.log.Overhead())
		if len(h.spilled) > maxSpilled {
			h.drop(h.spilled[0])
		}
	case len(o.packed.Runs) > maxInMemory:
		h.store(e)
	default:
		h.count(o, retainedSize+len(o.packed.Runs))
	}
	for ; h.held > maxOutput && h.unparked != nil; h.unparked = h.unparked.next {
		if o := h.unparked.output; o != nil && o.log == nil && o.size == 0 {
			h.store(h.unparked)
		}
	}
}

// retainedSize is the memory of retained output apart from its bytes.
const retainedSize = 112

func (h *History) count(o *retained, n int) {
	h.held += n - o.counted
	o.counted = n
}

// store moves output to the archive. Without an archive it drops the output.
func (h *History) store(e *Ended) {
	o := e.output
	at, ok := h.archive.Put(o.packed.Runs)
	if !ok {
		h.drop(e)
		return
	}
	o.at, o.size = at, len(o.packed.Runs)
	o.packed.Runs = nil
	h.count(o, 0)
}

// drop frees retained output.
func (h *History) drop(e *Ended) {
	o := e.output
	if o == nil {
		return
	}
	h.count(o, 0)
	if o.log != nil {
		o.log.Close()
		for i, other := range h.spilled {
			if other == e {
				h.spilled = append(h.spilled[:i:i], h.spilled[i+1:]...)
				break
			}
		}
	}
	e.output = nil
}

// Trim removes commands whose retention has ended, and the oldest beyond the
// bounds.
func (h *History) Trim(now time.Time) {
	for h.first != nil {
		e := h.first
		early := now.Sub(epoch)-e.ended < e.retention
		if early && len(h.byID) <= maxEnded && h.bytes <= maxEndedBytes {
			return
		}
		if early {
			h.remember(e.id())
		}
		h.drop(e)
		if h.first = e.next; h.first == nil {
			h.last = nil
		}
		if h.unparked == e {
			h.unparked = e.next
		}
		h.bytes -= e.cost()
		delete(h.byID, e.id())
	}
}

func (h *History) remember(id string) {
	if h.forgotten == nil {
		h.forgotten, h.ring = make(map[uint64]struct{}), make([]uint64, 0, maxForgotten)
	}
	mark := maphash.String(h.seed, id)
	h.forgotten[mark] = struct{}{}
	if len(h.ring) < maxForgotten {
		h.ring = append(h.ring, mark)
		return
	}
	delete(h.forgotten, h.ring[h.at])
	h.ring[h.at] = mark
	h.at = (h.at + 1) % maxForgotten
}

// Forgot reports whether a command with this id was dropped before its retention
// ended.
func (h *History) Forgot(id string) bool {
	if h.forgotten == nil {
		return false
	}
	_, ok := h.forgotten[maphash.String(h.seed, id)]
	return ok
}

// Find loads the ended command with this id.
func (h *History) Find(id string) (Command, bool) {
	e := h.byID[id]
	if e == nil {
		return Command{}, false
	}
	return e.load(h.archive), true
}

// Live loads the commands that left processes behind.
func (h *History) Live() []Command {
	var list []Command
	for _, e := range h.live() {
		list = append(list, e.load(h.archive))
	}
	return list
}

func (h *History) live() []*Ended {
	var list []*Ended
	for e := h.first; e != nil; e = e.next {
		if e.tree == nil {
			continue
		}
		if len(e.tree.Pids()) == 0 {
			e.tree = nil
			continue
		}
		list = append(list, e)
	}
	return list
}

// List describes all commands, or only those with live processes.
func (h *History) List(all bool) []*sandboxv1.Process {
	var list []*sandboxv1.Process
	if all {
		for e := h.first; e != nil; e = e.next {
			list = append(list, e.describe(h.archive))
		}
		return list
	}
	for _, e := range h.live() {
		if p := e.describe(h.archive); p.GetLiveProcesses() > 0 {
			list = append(list, p)
		}
	}
	return list
}

// Close drops everything.
func (h *History) Close() {
	for e := h.first; e != nil; e = e.next {
		h.drop(e)
	}
	h.byID, h.first, h.last, h.unparked = map[string]*Ended{}, nil, nil, nil
	h.archive.Close()
}
